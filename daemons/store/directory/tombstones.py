"""Clears that are past: what they matched, and was sealed before them, is not to come back from a node that was away.

Pure. Times are seconds of the caller's clock. Of clears with one filter only the latest is remembered.
"""

from collections.abc import Iterator
from typing import Final

from daemons.core.ids import NodeId
from daemons.protocol.block import BlockFilter, BlockMeta

MAX_TOMBSTONES: Final = 1000
TTL_S: Final = 7 * 86400.0
"""A node that was away longer may bring back what was cleared meanwhile: right bytes, only unwanted."""


class Tombstones:
    """The oldest gives way when there are too many."""

    def __init__(self) -> None:
        self._at_s: dict[BlockFilter, float] = {}
        self._latest_s = float("-inf")

    def __iter__(self) -> Iterator[tuple[BlockFilter, float]]:
        return iter(self._at_s.items())

    def __len__(self) -> int:
        return len(self._at_s)

    def add(self, wanted: BlockFilter, at_s: float, *, skew_s: float = 0.0) -> bool:
        """False when one with this filter is known that is at least as late, but for `skew_s`."""
        known_s = self._at_s.get(wanted)
        if known_s is not None and at_s <= known_s + skew_s:
            return False
        self._at_s[wanted] = at_s
        if len(self._at_s) > MAX_TOMBSTONES:
            del self._at_s[min(self._at_s, key=self._at_s.__getitem__)]
        self._latest_s = max(self._latest_s, at_s)
        return True

    def expire(self, now_s: float) -> None:
        """Forget those of more than TTL_S ago."""
        self._at_s = {wanted: at_s for wanted, at_s in self if now_s - at_s <= TTL_S}

    def covers(self, node: NodeId, meta: BlockMeta, sealed_s: float) -> bool:
        """Whether a replica that this node sealed then was cleared since; O(1) when none was."""
        return sealed_s <= self._latest_s and any(
            sealed_s <= at_s - (wanted.older_than_s or 0.0) and _matches(wanted, node, meta)
            for wanted, at_s in self
        )


def _matches(wanted: BlockFilter, node: NodeId, meta: BlockMeta) -> bool:
    return (
        wanted.model in (None, meta.model)
        and wanted.tenant in (None, meta.tenant)
        and wanted.node in (None, node)
        and (wanted.hashes is None or meta.hash in wanted.hashes)
        and meta.hash.hex().startswith((wanted.hash_prefix or "").lower())
    )
