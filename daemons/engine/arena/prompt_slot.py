"""Where a prompt gets its slot when the arena keeps prefixes: in place of one that it goes on with, or beside it. Pure.

What is kept never stands in the way: an idle slot is given up as soon as a prompt finds no room.
"""

from dataclasses import dataclass
from typing import Final

from daemons.core.errors import Exhausted
from daemons.engine.arena.retained import Found, Retained, RetainedSlots
from daemons.engine.arena.slots import Slot
from daemons.engine.base import Arena

_LITTLE: Final = 8
"""What else is in a slot is little up to so small a part of what is taken from there: copying that much takes longer
than making the rest again, or loading it from the pool.
"""


@dataclass(frozen=True, slots=True)
class Given:
    """`num_held` blocks of its beginning are in the slot of `kept`, which is its own, or in that of `source`, to be
    copied; that one is held until it is let go.
    """

    slot: Slot
    num_held: int = 0
    kept: Retained | None = None
    source: Retained | None = None


def give_slot(
    arena: Arena, retained: RetainedSlots, found: Found | None, num_tokens: int
) -> Given | None:
    """A slot for a prompt of so many tokens, whose beginning was found just now; None: there is no room."""
    if found is None:
        slot = _allocate(arena, retained, num_tokens)
        return None if slot is None else Given(slot)
    entry = found.entry
    fits = entry.slot.capacity_tokens >= num_tokens
    may_go_on = fits and _may_go_on(found)
    retained.hold(entry)
    if may_go_on:
        return _go_on_in(arena, retained, found)
    slot = _allocate(arena, retained, num_tokens)
    if slot is not None:
        return Given(slot, found.num_blocks, source=entry)
    if entry.num_users == 1 and fits:
        return _go_on_in(arena, retained, found)
    retained.let_go(entry)
    slot = _allocate(arena, retained, num_tokens)
    return None if slot is None else Given(slot)


def _may_go_on(found: Found) -> bool:
    """Whether the prompt takes the slot itself: nobody uses it, and what else is in it is little, and given up.

    Not by one whose own blocks were given up so: the two would go on taking the slot from each other.
    """
    rest = len(found.entry.hashes) - found.num_blocks
    is_little = rest <= found.num_blocks // _LITTLE
    return found.is_whole or (found.entry.is_idle and is_little and not found.is_back)


def _go_on_in(arena: Arena, retained: RetainedSlots, found: Found) -> Given:
    """The caller holds the entry, and nobody else does."""
    entry = found.entry
    retained.give_up_rest(found)
    entry.slot = arena.renew(entry.slot)
    return Given(entry.slot, found.num_blocks, kept=entry)


def _allocate(arena: Arena, retained: RetainedSlots, num_tokens: int) -> Slot | None:
    while True:
        try:
            return arena.allocate(num_tokens)
        except Exhausted:
            if not retained.give_up_oldest():
                return None
