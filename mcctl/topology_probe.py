"""Measuring every data path of a cluster: this host to each node, and each node to each other."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from daemons.client.identity import open_client_identity
from daemons.client.probe import ask_probe
from daemons.core.errors import McError
from daemons.protocol.node import ListedNode
from daemons.protocol.probe import DataProbeReply, PathMeasure
from daemons.protocol.segment import Grant, RegionRef
from daemons.transfer import host_id
from daemons.transfer.probe import measure

HERE: Final = "here"
"""The name of this process among the nodes."""
_SCHEMES: Final = ("shm", "rdma", "tcp")
_FAR_UNDER: Final = 0.5
"""Of the link's speed; below it the path is worth a look."""
_ASK_S: Final = 15.0
"""For one measurement by a node, with the turns it waits."""


_Ask = Callable[..., DataProbeReply]


class ProbedPath(msgspec.Struct, frozen=True, kw_only=True):
    """One path, `source` being who read. `error` when it could not be measured."""

    source: str
    target: str
    measured: PathMeasure | None = None
    error: str = ""
    warnings: list[str] = msgspec.field(default_factory=list)

    @property
    def link_fraction(self) -> float | None:
        """How much of the link was used."""
        if self.measured is None or not self.measured.link_bytes_per_s:
            return None
        return self.measured.bytes_per_s / self.measured.link_bytes_per_s


class _Offer(NamedTuple):
    region: RegionRef
    grant: Grant | None


def probe_all(
    nodes: Sequence[ListedNode], *, from_here_only: bool, key_file: Path | None = None
) -> Iterator[ProbedPath]:
    """Paths as they are measured, one at a time so that they do not disturb each other."""
    ask = partial(ask_probe, identity=open_client_identity(key_file))
    regions: dict[str, _Offer | McError] = {}
    for node in nodes:
        regions[node.node.node] = _offer_of(node, ask)
        yield _probe(HERE, host_id(), node, regions[node.node.node], ask)
    for reader in nodes if not from_here_only else []:
        for target in nodes:
            if target is not reader and not isinstance(regions[reader.node.node], McError):
                offer = regions[target.node.node]
                yield _probe(reader, reader.node.host_id, target, offer, ask)


def _offer_of(node: ListedNode, ask: _Ask) -> _Offer | McError:
    try:
        reply = ask(node.node.control)
    except McError as error:
        return error
    if reply.region is None:
        return McError("it offers nothing to measure; it runs an older release")
    return _Offer(reply.region, reply.grant)


def _probe(
    reader: ListedNode | str,
    reader_host: str,
    target: ListedNode,
    offer: _Offer | McError,
    ask: _Ask,
) -> ProbedPath:
    source = reader if isinstance(reader, str) else reader.node.node
    name = target.node.node
    if isinstance(offer, McError):
        return ProbedPath(source=source, target=name, error=offer.message)
    try:
        if isinstance(reader, str):
            measured: PathMeasure | None = measure(offer.region, _SCHEMES, grant=offer.grant)
        else:
            measured = ask(reader.node.control, offer.region, _ASK_S).measured
    except McError as error:
        return ProbedPath(source=source, target=name, error=error.message)
    path = ProbedPath(source=source, target=name, measured=measured)
    is_same_host = reader_host == target.node.host_id
    return msgspec.structs.replace(
        path, warnings=list(path_warnings(path, is_same_host=is_same_host))
    )


def path_warnings(path: ProbedPath, *, is_same_host: bool) -> Iterator[str]:
    """Falls back to tcp, or stays far under its link."""
    measured, name = path.measured, f"{path.source} -> {path.target}"
    if measured is None:
        return
    if measured.transport == "tcp" and is_same_host:
        why = "; ".join(measured.passed_over) or "shm is not among the transports"
        yield f"{name} goes over tcp although both are on one host: {why}"
    elif measured.transport == "tcp" and any(r.startswith("rdma") for r in measured.passed_over):
        yield f"{name} falls back to tcp: {'; '.join(measured.passed_over)}"
    fraction = path.link_fraction
    if fraction is not None and fraction < _FAR_UNDER:
        yield f"{name} reaches {fraction:.0%} of the speed of {measured.nic}"
