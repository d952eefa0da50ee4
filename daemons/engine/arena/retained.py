"""Prefixes that stay in an instance's KV arena once computed: the device tier. Pure; one owner calls it.

An entry is one slot and the chain of blocks that its first tokens are. While a request or a copy uses the slot it is
theirs; then it is idle, and given up for whoever needs the room, the least recently used first. Nothing is ever written
over the blocks of an entry: a request that takes an idle slot writes behind them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from daemons.core.ids import BlockHash
from daemons.engine.arena.slots import Slot

_MAX_GIVEN_UP: Final = 1024


@dataclass(frozen=True, slots=True)
class ChainOf:
    """Whose blocks they are; `root` comes before the first."""

    root: BlockHash
    model: str
    tenant: str


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """One block of the device tier, for whoever tells others of it."""

    hash: BlockHash
    parent: BlockHash
    depth: int
    chain: ChainOf
    made_s: float


@dataclass(slots=True, eq=False)
class Retained:
    """Blocks `hashes`, from the first token on, are final in `slot`; `num_users` read it or write behind them."""

    slot: Slot
    chain: ChainOf
    hashes: list[BlockHash]
    made_s: list[float]
    num_users: int = 1

    @property
    def is_idle(self) -> bool:
        return self.num_users == 0


@dataclass(frozen=True, slots=True)
class Found:
    """The first `num_blocks` of a chain are those of `entry`."""

    entry: Retained
    num_blocks: int
    is_whole: bool
    """Nobody uses the slot, and there is nothing in it that is not of this chain."""
    is_back: bool = False
    """What comes next in the chain was here, and was given up for another that began alike."""


class Listener(Protocol):
    """Told what the arena begins and ceases to hold, each block once however many slots have it."""

    def sealed(self, hashes: Sequence[BlockHash]) -> object: ...

    def freed(self, hashes: Sequence[BlockHash]) -> object: ...


@dataclass(slots=True)
class RetainedSlots:
    """`limit_tokens` bounds what is idle; `release` gives a slot back to the arena."""

    limit_tokens: int
    release: Callable[[Slot], object]
    listener: Listener
    idle_tokens: int = 0
    """Of the arena, in slots that are given up on demand."""
    _idle: dict[Retained, None] = field(default_factory=dict)
    """The least recently used first."""
    _by_hash: dict[BlockHash, dict[Retained, int]] = field(default_factory=dict)
    """Who holds a block, and as which of its chain."""
    _given_up: dict[BlockHash, None] = field(default_factory=dict)
    """First blocks of what was given up for others that began alike, the latest last."""

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def num_blocks(self) -> int:
        return len(self._by_hash)

    def hashes(self) -> list[BlockHash]:
        return list(self._by_hash)

    def describe(self, hashes: Iterable[BlockHash]) -> Iterator[HeldBlock]:
        """Those of them that are held."""
        for each in hashes:
            holders = self._by_hash.get(each)
            if holders:
                entry, depth = next(iter(holders.items()))
                parent = entry.hashes[depth - 1] if depth else entry.chain.root
                yield HeldBlock(each, parent, depth, entry.chain, entry.made_s[depth])

    def add(
        self, slot: Slot, chain: ChainOf, hashes: Sequence[BlockHash], *, now_s: float
    ) -> Retained:
        """These blocks are final in the slot, which the caller goes on using until `let_go`."""
        entry = Retained(slot, chain, [], [])
        self.extend(entry, hashes, now_s=now_s)
        return entry

    def extend(self, entry: Retained, hashes: Sequence[BlockHash], *, now_s: float) -> None:
        """By now its slot has all of this chain, of which it is the beginning."""
        fresh = []
        for each in hashes[len(entry.hashes) :]:
            entry.hashes.append(each)
            entry.made_s.append(now_s)
            holders = self._by_hash.setdefault(each, {})
            if not holders:
                fresh.append(each)
            holders[entry] = len(entry.hashes) - 1
        if fresh:
            self.listener.sealed(fresh)
        self._drop_covered(entry)

    def find(self, hashes: Sequence[BlockHash], max_blocks: int) -> Found | None:
        """The longest prefix of this chain that is held, or `max_blocks` of it; of several slots one that nobody uses
        and that has the least else.
        """
        for index in range(len(hashes) - 1, -1, -1):
            holders = self._by_hash.get(hashes[index])
            if not holders or max_blocks < 1:
                continue
            entry = min(holders, key=lambda each: (not each.is_idle, len(each.hashes)))
            is_whole = entry.is_idle and len(entry.hashes) == index + 1
            is_back = index + 1 < len(hashes) and hashes[index + 1] in self._given_up
            return Found(entry, min(index + 1, max_blocks), is_whole, is_back)
        return None

    def hold(self, entry: Retained) -> None:
        """Somebody uses the slot: it stays until `let_go`."""
        entry.num_users += 1
        if entry in self._idle:
            del self._idle[entry]
            self.idle_tokens -= entry.slot.capacity_tokens

    def let_go(self, entry: Retained) -> None:
        """Nobody uses it: the last one that does so makes it idle, or gives it back where it is not to be kept."""
        entry.num_users -= 1
        assert entry.num_users >= 0, "let go more often than held"
        if entry.num_users:
            return
        if not entry.hashes or self._is_covered(entry):
            self._drop(entry)
            return
        self._idle[entry] = None
        self.idle_tokens += entry.slot.capacity_tokens
        while self.idle_tokens > self.limit_tokens:
            self.give_up_oldest()

    def give_up_oldest(self) -> bool:
        """Somebody needs room: False when nothing is idle."""
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        self._drop(oldest)
        return True

    def give_up_rest(self, found: Found) -> None:
        """Somebody goes on in the slot behind what was found."""
        entry, num_blocks = found.entry, found.num_blocks
        if not found.is_whole and num_blocks < len(entry.hashes):
            self._given_up[entry.hashes[num_blocks]] = None
            if len(self._given_up) > _MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]
        self.cut(entry, num_blocks)

    def cut(self, entry: Retained, num_blocks: int) -> None:
        """Forget its blocks from here on: they may be written over."""
        gone = entry.hashes[num_blocks:]
        del entry.hashes[num_blocks:], entry.made_s[num_blocks:]
        freed = []
        for each in gone:
            holders = self._by_hash[each]
            del holders[entry]
            if not holders:
                del self._by_hash[each]
                freed.append(each)
        if freed:
            self.listener.freed(freed)

    def forget(self, hashes: Iterable[BlockHash]) -> int:
        """No slot is to hold these any more, nor what follows them there; how many of them were held."""
        num_held = 0
        for each in hashes:
            holders = list(self._by_hash.get(each, {}).items())
            num_held += bool(holders)
            for entry, depth in holders:
                self.cut(entry, depth)
                if not entry.hashes and entry.is_idle:
                    self._drop(entry)
        return num_held

    def check_invariants(self) -> None:
        """For tests."""
        assert self.idle_tokens == sum(entry.slot.capacity_tokens for entry in self._idle)
        assert self.idle_tokens <= self.limit_tokens
        for each, holders in self._by_hash.items():
            assert holders
            assert all(each in entry.hashes for entry in holders)
        for entry in self._idle:
            assert entry.is_idle
            assert entry.hashes
            assert all(entry in self._by_hash[each] for each in entry.hashes)

    def _drop_covered(self, by: Retained) -> None:
        """Idle slots whose blocks this one has all of are of no use any more."""
        held = set(by.hashes)
        for other in [each for each in self._idle if each.hashes[-1] in held]:
            self._drop(other)

    def _is_covered(self, entry: Retained) -> bool:
        """Whether another slot has all its blocks."""
        return len(self._by_hash[entry.hashes[-1]]) > 1

    def _drop(self, entry: Retained) -> None:
        if entry in self._idle:
            del self._idle[entry]
            self.idle_tokens -= entry.slot.capacity_tokens
        self.cut(entry, 0)
        self.release(entry.slot)
