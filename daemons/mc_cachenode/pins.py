"""What the master said is pinned here: kept for the time without one, and told to the next one."""

from collections.abc import Sequence

from daemons.core.ids import BlockHash, Incarnation
from daemons.protocol.pin import Pin


class NodePins:
    """Loop thread only; times of the loop's clock."""

    def __init__(self) -> None:
        self._until_s: dict[BlockHash, float] = {}
        self._pins: dict[BlockHash, Pin] = {}
        self._incarnation = Incarnation(0)

    def hold(self, pins: Sequence[Pin], incarnation: Incarnation, *, now_s: float) -> None:
        """Instead of what was held before."""
        self._incarnation = incarnation
        self._pins = {pin.hash: pin for pin in pins}
        self._until_s = {pin.hash: now_s + pin.ttl_ms / 1000 for pin in pins}

    def find(self, block_hash: BlockHash, *, now_s: float) -> Pin | None:
        """One that has not ended."""
        pin = self._pins.get(block_hash)
        return pin if pin is not None and self._until_s[block_hash] > now_s else None

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
