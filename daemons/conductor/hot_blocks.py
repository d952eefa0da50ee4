"""Which blocks are hot: how often each was read in a window of time, and so how many replicas it should have. Pure.

Hot at once, when its uses of the running window say so; cool at the end of a window in which it had much fewer, so that
a block near the limit is not copied and dropped again and again.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from daemons.core.ids import BlockHash

MAX_COUNTED: Final = 1 << 18
"""Blocks of one window; those that come later are not counted."""
_COOL_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class HotRules:
    """One replica more for each `uses` in a window of `window_s`, up to `max_replicas`; `uses` 0: nothing is hot."""

    uses: int
    window_s: float
    max_replicas: int

    def replicas_for(self, num_uses: int) -> int:
        return min(self.max_replicas, 1 + num_uses // self.uses)


@dataclass(frozen=True, slots=True)
class Heat:
    """Effect: the block should have at least so many replicas from now on; 0: no more than if it had never been hot."""

    hash: BlockHash
    num_replicas: int


Blocks = TypeVar("Blocks", contravariant=True)
"""How a request names those that it reads."""


class UseCounts(Protocol[Blocks]):
    """How often each block was read in the running window."""

    def use(self, blocks: Blocks, limit: int) -> Sequence[tuple[BlockHash, int]]:
        """A request reads these; those that may be hotter now, of which there are nearly always none: all that came to
        a multiple of `limit` uses are among them.
        """

    def of(self, block_hash: BlockHash) -> int: ...

    def clear(self) -> None:
        """The next window begins."""


class HashCounts:
    """By hash, where there is no table of blocks. Bounded by MAX_COUNTED."""

    def __init__(self) -> None:
        self._uses: Counter[BlockHash] = Counter()

    def use(self, blocks: Sequence[BlockHash], limit: int) -> Sequence[tuple[BlockHash, int]]:
        uses = self._uses
        if len(uses) >= MAX_COUNTED:
            blocks = [block_hash for block_hash in blocks if block_hash in uses]
        uses.update(blocks)
        return [(each, count) for each in blocks if (count := uses[each]) >= limit]

    def of(self, block_hash: BlockHash) -> int:
        return self._uses.get(block_hash, 0)

    def clear(self) -> None:
        self._uses = Counter()


class HotBlocks(Generic[Blocks]):
    """No Python for each block of a request where none of them is hot, as far as the counts need none."""

    def __init__(self, rules: HotRules, counts: UseCounts[Blocks]) -> None:
        self.rules = rules
        self._counts = counts
        self._replicas: dict[BlockHash, int] = {}
        self._ends_s: float | None = None

    def __len__(self) -> int:
        """How many are hot now."""
        return len(self._replicas)

    def use(self, blocks: Blocks) -> list[Heat]:
        """A request reads these; what became hot, or hotter."""
        limit = self.rules.uses
        if not limit:
            return []
        return [
            Heat(block_hash, wanted)
            for block_hash, count in self._counts.use(blocks, limit)
            if (wanted := self._rise(block_hash, count))
        ]

    def roll(self, *, now_s: float) -> list[Heat]:
        """What cooled down in the window that ends now; nothing while it runs."""
        if self._ends_s is None:
            self._ends_s = now_s + self.rules.window_s
        if now_s < self._ends_s:
            return []
        cooled = self._cool()
        self._counts.clear()
        self._ends_s = now_s + self.rules.window_s
        return cooled

    def forget(self, hashes: Iterable[BlockHash]) -> None:
        """They are gone."""
        for block_hash in hashes:
            self._replicas.pop(block_hash, None)

    def _rise(self, block_hash: BlockHash, count: int) -> int:
        """Its new number of replicas after so many uses; 0 where it has that already."""
        wanted = self.rules.replicas_for(count)
        if wanted <= self._replicas.get(block_hash, 1):
            return 0
        self._replicas[block_hash] = wanted
        return wanted

    def _cool(self) -> list[Heat]:
        rules, cooled = self.rules, []
        for block_hash, before in list(self._replicas.items()):
            # So many uses would have kept all of them.
            enough = _COOL_SHARE * (before - 1) * rules.uses
            if rules.uses and self._counts.of(block_hash) >= enough:
                continue
            wanted = rules.replicas_for(self._counts.of(block_hash)) if rules.uses else 1
            if wanted > 1:
                self._replicas[block_hash] = wanted
            else:
                del self._replicas[block_hash]
            cooled.append(Heat(block_hash, wanted if wanted > 1 else 0))
        return cooled
