"""One request's tokens while it is decoded, and when it is over."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from daemons.engine.arena.slots import Slot
from daemons.protocol.request import SamplingParams

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and answer so far; every token but the last has its KV in the slot."""

    request_id: str
    slot: Slot
    tokens: list[int]
    sampling: SamplingParams
    max_length: int  # prompt and answer together, within slot and model context
    stop_tokens: AbstractSet[int] = frozenset()
    may_draft: bool = True
    finish: FinishReason | None = None
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)
        self.max_length = min(self.max_length, self.slot.capacity_tokens)

    @property
    def position(self) -> int:
        """Where the last token stands, whose KV the next step writes."""
        return len(self.tokens) - 1

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    def append(self, token: int) -> None:
        """Add a sampled token; sets `finish` when it is the last. A stop token stays in `tokens`."""
        assert self.finish is None, "a finished sequence does not grow"
        self.tokens.append(token)
        if token in self.stop_tokens:
            self.finish = "stop"
        elif len(self.tokens) >= self.max_length:
            self.finish = "length"
