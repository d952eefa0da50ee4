"""configs/grafana-dashboard.json: every query is over metrics and labels that daemons export."""

from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase
from shipped.dashboard import read_panels, read_queries

from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.mc_decode.metrics import DecodeMetrics
from daemons.mc_gateway.metrics import GatewayMetrics
from daemons.mc_master.metrics import MasterMetrics
from daemons.mc_prefill.metrics import PrefillMetrics

DAEMONS = (MasterMetrics, CachenodeMetrics, PrefillMetrics, DecodeMetrics, GatewayMetrics)
_SERIES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
_ADDED = {"instance", "job"}
"""By Prometheus to every series."""


def exported() -> dict[str, tuple[str, set[str]]]:
    """Series -> its kind and labels."""
    found: dict[str, tuple[str, set[str]]] = {}
    for daemon in DAEMONS:
        for metric in daemon().registry._collector_to_names:
            assert isinstance(metric, MetricWrapperBase)
            labels = set(metric._labelnames) | _ADDED
            for suffix in _SERIES[metric._type]:
                more = {"le"} if suffix == "_bucket" else set()
                found[metric._name + suffix] = (metric._type, labels | more)
    return found


def test_every_query_is_over_what_daemons_export(checkout: Path) -> None:
    series = exported()
    queries = read_queries(checkout)
    assert len(queries) > 30
    for query in queries:
        assert query.metrics, query
        assert not query.metrics - set(series), query
        for name in query.metrics:
            assert not query.labels - series[name][1], query
        assert query.expr.count("(") == query.expr.count(")"), query


def test_what_only_grows_is_shown_as_a_rate(checkout: Path) -> None:
    series = exported()
    for query in read_queries(checkout):
        growing = {name for name in query.metrics if series[name][0] != "gauge"}
        assert query.rated <= growing, f"a rate of a gauge: {query}"
        if query.panel != "Lost by restarts":
            assert query.rated == growing, f"a bare counter: {query}"
        assert ("histogram_quantile" in query.expr) == ("_bucket" in query.expr)


def test_every_daemon_is_on_it(checkout: Path) -> None:
    shown = {name for query in read_queries(checkout) for name in query.metrics}
    for role in ("master", "cachenode", "prefill", "decode", "gateway"):
        assert any(name.startswith(f"mc_{role}_") for name in shown), role


def test_panels_have_titles_of_their_own_and_do_not_overlap(checkout: Path) -> None:
    panels = read_panels(checkout)
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + k) for i in range(at["w"]) for k in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        ids = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(ids)) == len(ids)
