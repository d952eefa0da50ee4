"""What the Grafana dashboard asks of Prometheus, taken apart as far as a check against exported metrics needs."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_METRIC = re.compile(r"\bmc_[a-z_]+\b")
_FUNCTION_OVER = re.compile(r"\b(?:rate|increase)\((mc_[a-z_]+)")
_BY = re.compile(r"\bby \(([a-z_, ]+)\)")
_MATCHERS = re.compile(r"\{([^}]*)\}")
_LEGEND = re.compile(r"\{\{([a-z_]+)\}\}")


@dataclass(frozen=True, slots=True)
class Query:
    panel: str
    expr: str
    legend: str

    @property
    def metrics(self) -> set[str]:
        return set(_METRIC.findall(self.expr))

    @property
    def rated(self) -> set[str]:
        return set(_FUNCTION_OVER.findall(self.expr))

    @property
    def labels(self) -> set[str]:
        """Those grouped by, matched, or shown."""
        found = {name for group in _BY.findall(self.expr) for name in group.split(", ")}
        for matchers in _MATCHERS.findall(self.expr):
            found |= set(re.findall(r"([a-z_]+)\s*[=!]", matchers))
        return found | set(_LEGEND.findall(self.legend))


def read_panels(checkout: Path) -> list[dict[str, Any]]:
    found = json.loads((checkout / "configs" / "grafana-dashboard.json").read_text())
    panels: list[dict[str, Any]] = found["panels"]
    return panels


def read_queries(checkout: Path) -> list[Query]:
    return [
        Query(panel["title"], target["expr"], target["legendFormat"])
        for panel in read_panels(checkout)
        for target in panel.get("targets", ())
    ]
