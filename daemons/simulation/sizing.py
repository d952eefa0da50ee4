"""How much memory to buy: sizes of DRAM and SSD that the trace asks for, to be tried by a simulation each.

A cache is large enough when it finds WORTH of what one without end would. DRAM may be as small as an SSD below it
allows: what is found there only has to be read at half the drives' rate, and all new KV has to be written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from daemons.simulation.capacity import hit_fraction, num_distinct_tokens
from daemons.simulation.hardware import HardwareProfile
from daemons.simulation.outcome import SimulationResult
from daemons.simulation.trace import BLOCK_TOKENS, TraceRequest

WORTH: Final = 0.95
IN_FLIGHT_S: Final = 30.0
"""DRAM holds at least the prompts of so long a time: those that are computed, loaded and sent."""
DEVICE_SHARE: Final = 0.5
SSD_PRICE: Final = 0.05
"""Of a byte of DRAM. Only the order of what is bought depends on it."""
_STEPS: Final = 14


@dataclass(frozen=True, slots=True)
class MemorySizes:
    """Of each prefill node."""

    name: str
    dram_tokens: int
    ssd_tokens: int = 0

    @property
    def price(self) -> float:
        """In tokens of DRAM."""
        return self.dram_tokens + SSD_PRICE * self.ssd_tokens


class MemoryChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One way to equip each prefill node, and what came of it."""

    name: str
    dram_tokens: int
    ssd_tokens: int
    price: float
    """In tokens of DRAM, an SSD's byte at a twentieth."""
    run: SimulationResult


def sizes_to_try(
    requests: Sequence[TraceRequest], profile: HardwareProfile, num_prefills: int
) -> list[MemorySizes]:
    """The profile's own DRAM, enough of it for all that is worth keeping, in all nodes together and in each (where a
    prompt may then find it without a neighbour), and the least with an SSD below.
    """
    hits = _remembered(requests)
    limit = hits(0)
    largest = num_distinct_tokens(requests)
    total = _least(largest, lambda tokens: hits(tokens) >= WORTH * limit)
    tokens_per_s = sum(r.input_tokens for r in requests) / max(requests[-1].arrival_s, 1.0)
    bytes_per_s = tokens_per_s * profile.kv.bytes_per_token
    found = [
        MemorySizes("the profile's DRAM", profile.kv.dram_tokens),
        MemorySizes("all in DRAM", _share(total, num_prefills)),
    ]
    if num_prefills > 1 and _share(largest, 1) < profile.kv.dram_tokens:
        found.append(MemorySizes("all in DRAM of each", _share(largest, 1)))
    written_per_s = (1 - limit) * bytes_per_s
    if written_per_s <= DEVICE_SHARE * profile.ssd.write * num_prefills:
        read_per_s = DEVICE_SHARE * profile.ssd.read * num_prefills
        dram = _least(total, lambda size: (hits(total) - hits(size)) * bytes_per_s <= read_per_s)
        sizes = (
            _share(max(dram, int(IN_FLIGHT_S * tokens_per_s)), num_prefills),
            _share(total, num_prefills),
        )
        if sizes[0] < sizes[1]:
            found.append(MemorySizes("little DRAM, SSD below", *sizes))
    return found


def best_choice(choices: Sequence[MemoryChoice]) -> MemoryChoice:
    """The cheapest of those about as good as the best: half a point of goodput, a tenth of mean TTFT."""
    goodput = max(choice.run.goodput for choice in choices)
    near = [choice for choice in choices if choice.run.goodput >= goodput - 0.005]
    ttft_s = min(choice.run.ttft_s.mean for choice in near)
    near = [choice for choice in near if choice.run.ttft_s.mean <= 1.1 * ttft_s]
    return min(near, key=lambda choice: choice.price)


def _remembered(requests: Sequence[TraceRequest]) -> Callable[[int], float]:
    known: dict[int, float] = {}

    def hits(capacity_tokens: int) -> float:
        blocks = capacity_tokens // BLOCK_TOKENS
        if blocks == 0 < capacity_tokens:
            return 0.0
        if blocks not in known:
            known[blocks] = hit_fraction(requests, blocks * BLOCK_TOKENS)
        return known[blocks]

    return hits


def _least(largest: int, is_enough: Callable[[int], bool]) -> int:
    """The smallest size that will do, within a small part of `largest`, which does."""
    low, high = 0, largest
    for _ in range(_STEPS):
        middle = (low + high) // 2
        if middle and is_enough(middle):
            high = middle
        else:
            low = middle
    return high


def _share(tokens: int, num_nodes: int) -> int:
    """Of each node, in whole blocks, at least one."""
    return max(1, -(-tokens // (num_nodes * BLOCK_TOKENS))) * BLOCK_TOKENS
