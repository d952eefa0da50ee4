"""What the master said is pinned here: kept for the time without one, logged, and told to the next one."""

from collections.abc import Sequence

from daemons.core.ids import BlockHash, Incarnation
from daemons.protocol.pin import Pin
from daemons.store.index.format import PinRecord


class NodePins:
    """Loop thread only; `now_s` is of the loop's clock, `now_ms` of the wall's, which goes on while a node is away."""

    def __init__(self) -> None:
        self._until_s: dict[BlockHash, float] = {}
        self._pins: dict[BlockHash, Pin] = {}
        self._logged: dict[BlockHash, PinRecord] = {}
        """Of those that were asked for."""
        self._incarnation = Incarnation(0)

    def hold(
        self, pins: Sequence[Pin], incarnation: Incarnation, *, now_s: float, now_ms: int
    ) -> list[PinRecord]:
        """Instead of what was held before; what is to be logged of it."""
        self._incarnation = incarnation
        self._pins = {pin.hash: pin for pin in pins}
        self._until_s = {pin.hash: now_s + pin.ttl_ms / 1000 for pin in pins}
        before, self._logged = self._logged, {}
        news = []
        for pin in pins:
            if not pin.is_own:
                continue
            record = PinRecord(pin.hash, pin.is_hard, now_ms + pin.ttl_ms, incarnation)
            known = before.pop(pin.hash, None)
            if known is not None and _is_same(known, record):
                record = known
            else:
                news.append(record)
            self._logged[pin.hash] = record
        ended = (PinRecord(block_hash, False, 0, incarnation) for block_hash in before)
        return [*news, *ended]

    def restore(self, records: Sequence[PinRecord], *, now_s: float, now_ms: int) -> None:
        """What an earlier process logged; those whose time is over have ended."""
        live = [record for record in records if record.until_ms > now_ms]
        self._incarnation = Incarnation(max((each.incarnation for each in records), default=0))
        self._logged = {record.hash: record for record in live}
        self._pins = {
            record.hash: Pin(
                hash=record.hash, is_hard=record.is_hard, ttl_ms=record.until_ms - now_ms
            )
            for record in live
        }
        self._until_s = {each: now_s + pin.ttl_ms / 1000 for each, pin in self._pins.items()}

    def records(self, *, now_ms: int) -> list[PinRecord]:
        """Those to be logged that have not ended."""
        return [record for record in self._logged.values() if record.until_ms > now_ms]

    def find(self, block_hash: BlockHash, *, now_s: float) -> Pin | None:
        """One that has not ended."""
        pin = self._pins.get(block_hash)
        return pin if pin is not None and self._until_s[block_hash] > now_s else None

    def hard(self, *, now_s: float) -> list[BlockHash]:
        """Of those that have not ended."""
        return [
            each for each, pin in self._pins.items() if pin.is_hard and self._until_s[each] > now_s
        ]

    def news_for(self, incarnation: Incarnation, *, now_s: float) -> list[Pin]:
        """Those that were asked for, with the time they have left; none for the master that told them."""
        if incarnation == self._incarnation:
            return []
        return [
            Pin(
                hash=pin.hash,
                is_hard=pin.is_hard,
                ttl_ms=max(1, round(1000 * (self._until_s[pin.hash] - now_s))),
            )
            for pin in self._pins.values()
            if pin.is_own and self._until_s[pin.hash] > now_s
        ]


_SLACK_MS = 2000
"""One pin is told again and again, each time with the time it has left then."""


def _is_same(known: PinRecord, record: PinRecord) -> bool:
    if (known.is_hard, known.incarnation) != (record.is_hard, record.incarnation):
        return False
    return abs(known.until_ms - record.until_ms) <= _SLACK_MS
