"""One request on a decode node, from its arrival to its last token. Loop thread only.

waiting   no KV room yet
filling   prefill computes, we pull: reused blocks from the pool, new layers from the prefill node
decoding  all KV is here; the engine thread makes tokens
ended     answered; the slot goes once no copy, no step and no put works on it
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from daemons.client.prefix_load import PrefixLoad
from daemons.engine.arena.slots import Slot
from daemons.protocol.request import FinishReason, Generate, PrefillReply, Timing
from daemons.protocol.segment import Source
from daemons.rpc import Call, Pending, Timer

State = Literal["waiting", "filling", "decoding", "ended"]
Holder = Literal["load", "engine", "put"]


@dataclass(slots=True, eq=False)
class Request:
    call: Call
    message: Generate
    arrived_s: float
    state: State = "waiting"
    deadline: Timer | None = None
    """Whoever asked has given up by then: it ends wherever it is."""
    slot: Slot | None = None
    prefill: Pending | None = None
    source: Source | None = None
    row_bytes: int = 0
    reply: PrefillReply | None = None
    load: PrefixLoad | None = None
    num_pulls: int = 0
    """Copies from the prefill node under way; the slot may not go before they ended."""
    is_gap_pulled: bool = False
    pulled_bytes: int = 0
    holders: set[Holder] = field(default_factory=set)
    tokens: list[int] = field(default_factory=list)
    """Answer so far."""
    num_steps: int = 0
    """Of decode; fewer than tokens where drafts were right."""
    num_drafts: int = 0
    """Tokens that were guessed and tried in these steps."""
    num_right: int = 0
    first_token_s: float = 0.0
    filled_s: float = 0.0
    num_published: int = 0
    given_up: str | None = None
    """Why nobody waits for the rest; None while somebody does, or has all of it."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.message.tokens)

    def is_filled(self) -> bool:
        """Every byte of the prompt's KV is in the slot."""
        return (
            self.reply is not None
            and not self.num_pulls
            and "load" not in self.holders
            and self.is_gap_pulled
        )

    def loaded_tokens(self) -> int:
        """Leading tokens that came from the pool."""
        return 0 if self.load is None else self.load.num_blocks * self.load.block_tokens

    def gap(self) -> tuple[int, int]:
        """Tokens [start, end) that are to be pulled once more than prefill computed them: it has loaded them.

        A load that got shorter has left garbage up to where it set out to go, maybe over KV that was pulled before.
        """
        assert self.reply is not None
        start = self.loaded_tokens()
        asked = 0 if self.load is None else self.load.num_asked * self.load.block_tokens
        return start, max(self.reply.num_reused_tokens, asked if start < asked else 0)

    def timing(self, now_s: float) -> Timing:
        """Prefill's account, completed by ours."""
        assert self.reply is not None
        theirs = self.reply.timing
        return Timing(
            prefill_queue_s=theirs.prefill_queue_s,
            load_s=theirs.load_s,
            load_wait_s=theirs.load_wait_s,
            compute_s=theirs.compute_s,
            first_token_s=self.first_token_s - self.arrived_s,
            handoff_s=max(0.0, self.filled_s - self.first_token_s),
            decode_s=max(0.0, now_s - self.filled_s) if self.filled_s else 0.0,
            decode_steps=self.num_steps,
            drafted_tokens=self.num_drafts,
            accepted_tokens=self.num_right,
            pulled_bytes=self.pulled_bytes,
            loaded_bytes=theirs.loaded_bytes + (0 if self.load is None else self.load.loaded_bytes),
        )


@dataclass(frozen=True, slots=True)
class Stepped:
    """What one step made of one request, from the engine thread."""

    request: Request
    tokens: Sequence[int]
    finish: FinishReason | None
    num_drafts: int = 0
    num_right: int = 0
    """Drafts that the model would have said too."""
