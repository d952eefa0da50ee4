"""What tenants used, added up from the files that gateways of this host write, a line for each answer."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from daemons.config.usage import UsageLine, day_of, read_usage, usage_file

_DAY_S: Final = 86_400
_STATE: Final = Path("/var/lib/mooncake")


class TenantUsage(msgspec.Struct, kw_only=True):
    """A row of `tenant usage`; fields are only ever added."""

    tenant: str
    model: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


def usage_directories(tenants_file: Path) -> list[Path]:
    """Where gateways of this host write: beside the file of tenants, or in the state directories of the units."""
    return [tenants_file.parent, *sorted(_STATE.glob("mc-gateway-*"))]


def used(directories: Iterable[Path], days: int, tenant: str | None) -> list[TenantUsage]:
    """By tenant and model, sorted; of one tenant, or of all. A directory counts once, however often it is named."""
    rows: dict[tuple[str, str], TenantUsage] = {}
    for line in _lines(directories, days):
        if tenant in (None, line.tenant):
            row = rows.setdefault(
                (line.tenant, line.model), TenantUsage(tenant=line.tenant, model=line.model)
            )
            row.requests += 1
            row.prompt_tokens += line.prompt_tokens
            row.cached_tokens += line.cached_tokens
            row.completion_tokens += line.completion_tokens
            row.cost += line.cost
    return [rows[which] for which in sorted(rows)]


def _lines(directories: Iterable[Path], days: int) -> Iterator[UsageLine]:
    now_s = time.time()
    for directory in dict.fromkeys(each.resolve() for each in directories):
        for back in range(days):
            yield from read_usage(usage_file(directory, day_of(now_s - back * _DAY_S)))
