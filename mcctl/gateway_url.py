"""Where the gateway is, for a verb that speaks HTTP: as told, else as the master that was named knows it."""

from collections.abc import Iterable

from daemons.client.cluster import ClusterClient
from daemons.core.errors import NotFound
from daemons.protocol.address import address_of, is_wildcard
from daemons.protocol.node import ListedNode
from mcctl.settings import Settings

_HERE = ("127.", "localhost", "[::1]")


def gateway_url(settings: Settings, given: str | None = None) -> str:
    """`given` is the verb's own flag. A master that was named on the command line or in mcctl.toml is asked, before
    what a local cluster or the default says; a `url` in mcctl.toml stands beside its `endpoint`.
    """
    if given is not None:
        return given
    if not (settings.endpoint or (settings.file.endpoint and not settings.file.url)):
        return settings.url
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        return choose_gateway(client.nodes().nodes, address_of(settings.master))


def choose_gateway(nodes: Iterable[ListedNode], master: str) -> str:
    """The first live one by name that can be reached from where the master can. Raises NotFound."""
    found = sorted(
        (
            listed.node
            for listed in nodes
            if listed.node.role == "gateway" and listed.state == "alive"
        ),
        key=lambda node: node.node,
    )
    if not found:
        raise NotFound(f"no gateway has joined {master}; start one, or name it with --url")
    is_here = master.partition("://")[2].startswith(_HERE)
    reachable = [node for node in found if is_here or not _host(node.control).startswith(_HERE)]
    if not reachable:
        raise NotFound(
            f"the gateways of {master} listen on their own host only ({found[0].host}: {found[0].control}); "
            "set `http.host` there, or run this on that host"
        )
    chosen = reachable[0]
    host, url = _host(chosen.control), chosen.control
    return (
        url.replace(f"//{host}:", f"//{chosen.host}:", 1) if is_wildcard(host.strip("[]")) else url
    )


def _host(url: str) -> str:
    return url.partition("://")[2].rpartition(":")[0]
