"""What tenants hold in the pool, and may hold: the master's to say, not a file's."""

from typing import Final

from daemons.client.cluster import ClusterClient
from daemons.core.errors import McError
from daemons.core.units import format_size, parse_size
from daemons.protocol.tenant import PoolUsage
from mcctl import render
from mcctl.render import Column
from mcctl.settings import Settings

_WAIT_S: Final = 0.5


def by_tenant(settings: Settings) -> dict[str, PoolUsage]:
    """Empty where no master answers at once: what files say is shown all the same."""
    wait_s = min(_WAIT_S, settings.wait_s)
    try:
        with ClusterClient(settings.master, wait_s, settings.key_file) as client:
            return {each.tenant: each for each in client.pool_usage()}
    except McError:
        return {}


def set_quota(settings: Settings, name: str, pool_bytes: str) -> int:
    """What it was before, in bytes. Raises ConfigError for what is no size, Unavailable."""
    num_bytes = parse_size(pool_bytes)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        before = {each.tenant: each.quota_bytes or 0 for each in client.pool_usage()}
        client.set_pool_quota(name, num_bytes)
    return before.get(name, 0)


def show(settings: Settings, name: str) -> None:
    """For a tenant that need not be in a file here: the master knows it by its blocks."""
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        rows = [each for each in client.pool_usage() if each.tenant == name]
    columns = [
        Column("tenant", lambda p: p.tenant),
        Column("in the pool", text_of, is_number=True),
        Column("leased", lambda p: format_size(p.leased_bytes), is_number=True),
        Column("pinned", lambda p: format_size(p.pinned_bytes), is_number=True),
    ]
    render.emit(settings.output, {"pool": rows}, columns, rows)


def text_of(usage: PoolUsage | None) -> str:
    """A cell of a table; `None` where nothing is known."""
    if usage is None:
        return "-"
    used = format_size(usage.used_bytes)
    text = f"{used} of {format_size(usage.quota_bytes)}" if usage.quota_bytes else used
    return f"{text}, puts refused" if usage.is_refused else text
