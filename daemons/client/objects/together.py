"""The first attempt at a batch of values: those that are in mapped memory at once, the others by one request a region.

It never fails: what it does not bring is read in the usual way, one by one, with all its replicas.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from daemons.client.node_health import PATIENT_S, NodeHealth
from daemons.client.objects.cache import Found
from daemons.client.objects.format import FOOTER_BYTES, Footer
from daemons.client.objects.near import read_near
from daemons.client.objects.stream import Arriving, receive
from daemons.core.errors import McError, Unavailable
from daemons.core.units import MIB
from daemons.store.segment.seal import BadSeal
from daemons.transfer import ByteArray, TransferEngine

FAILOVER_S: Final = 0.15
FAILOVER_BYTES_PER_S: Final = 100 * MIB
"""A replica that is slower is given up where there is another one."""


class _Asked(NamedTuple):
    """Value `number` of the batch."""

    number: int
    found: Found
    body: ByteArray

    @property
    def has_others(self) -> bool:
        """It may be elsewhere too, so that its node is not waited for."""
        return self.found.is_cached or len(self.found.places) > 1


Brought = Iterator[tuple[int, Footer, ByteArray]]
"""Index, footer and bytes of a value that was verified."""


class Together:
    """Thread safe."""

    def __init__(self, engine: TransferEngine, health: NodeHealth) -> None:
        self._engine = engine
        self._health = health

    def read(
        self,
        indexes: Sequence[int],
        found: Sequence[object],
        targets: Sequence[ByteArray] | None,
        deadline_s: float,
    ) -> Brought:
        """Values of `indexes` that are in their targets now, or in memory of their own without `targets`."""
        asked, near = [], []
        is_mapped: dict[tuple[int, int], bool] = {}
        for index in indexes:
            each = found[index]
            if not isinstance(each, Found) or each.places[0].location.tier != "dram":
                continue
            region = each.places[0].location.region
            key = region.address.epoch, region.region_id
            if key not in is_mapped:
                is_mapped[key] = self._engine.mapped(region) is not None
            if not is_mapped[key]:
                asked.append((index, each))
            elif targets is not None:
                near.append((index, each.places[0].location, targets[index]))
        footers = read_near(self._engine, [(at, target) for _, at, target in near])
        for (index, _, target), footer in zip(near, footers, strict=True):
            if footer is not None:
                yield index, footer, target
        for group in self._by_region(asked, targets, first=indexes[0]):
            yield from self._received(group, deadline_s)

    def _by_region(
        self,
        asked: Sequence[tuple[int, Found]],
        targets: Sequence[ByteArray] | None,
        first: int,
    ) -> list[list[_Asked]]:
        """What one request can bring, each. Shares of a batch begin at different nodes, by their first index."""
        groups: dict[tuple[int, int, int], list[_Asked]] = {}
        suspects: dict[int, bool] = {}
        for index, each in asked:
            place = each.places[0]
            region = place.location.region
            epoch = region.address.epoch
            if epoch not in suspects:
                suspects[epoch] = self._health.is_suspect(place.location)
            body_bytes = place.location.length - FOOTER_BYTES
            if suspects[epoch] or body_bytes != each.value_bytes:
                continue
            body = np.empty(body_bytes, np.uint8) if targets is None else targets[index]
            if body.nbytes == body_bytes and body.flags.writeable:
                key = epoch, region.region_id, id(place.grant)
                groups.setdefault(key, []).append(_Asked(index, each, body))
        ordered = list(groups.values())
        turn = first % len(ordered) if ordered else 0
        return ordered[turn:] + ordered[:turn]

    def _received(self, group: Sequence[_Asked], deadline_s: float) -> Brought:
        arriving: list[tuple[_Asked, Arriving]] = []
        for each in group:
            try:
                arriving.append((each, Arriving(each.found.places[0].location, each.body)))
            except BadSeal:
                continue
        self._receive(group, [one for _, one in arriving], deadline_s - time.monotonic())
        for each, one in arriving:
            if one.is_good and one.footer is not None and not one.footer.chunk_bytes:
                yield each.number, one.footer, each.body

    def _receive(
        self, group: Sequence[_Asked], arriving: Sequence[Arriving], left_s: float
    ) -> None:
        place = group[0].found.places[0]
        has_others = any(each.has_others for each in group)
        if has_others:
            num_bytes = sum(each.body.nbytes for each in group)
            left_s = min(left_s, FAILOVER_S + num_bytes / FAILOVER_BYTES_PER_S)
        stall_s = FAILOVER_S if has_others else PATIENT_S
        try:
            receive(
                self._engine, (place.location, place.grant), arriving, max(0.05, left_s), stall_s
            )
        except McError as error:
            # Where there is nobody else the usual way has more patience: it is not in doubt yet.
            if has_others and isinstance(error, Unavailable):
                self._health.failed(place.location, error)
        else:
            self._health.answered(place.location)
