"""What became of the latest requests, as the master remembers them."""

from typing import Literal

import msgspec

from daemons.core.ids import BlockHash, NodeId, RequestId
from daemons.protocol.base import Message, Record
from daemons.protocol.block import Tier
from daemons.protocol.request import Candidate


class ListRequests(Message, frozen=True, kw_only=True):
    """To the master: the most recent requests, newest first."""

    limit: int = 50


class Ahead(Record, frozen=True, kw_only=True):
    """What the plan of a request set going beside it. `staged`: brought up from this tier of this node, while it was
    queued; `replicated`: another copy, since so many read them, on a node that is chosen later.
    """

    what: Literal["staged", "replicated"]
    num_blocks: int
    hashes: list[BlockHash]
    """The first of them."""
    node: NodeId | None = None
    tier: Tier | None = None


class ListedRequest(Record, frozen=True, kw_only=True):
    """A rejected one has no instances, and a prediction only where it was rejected for that; `why` says it in words."""

    request_id: RequestId
    model: str
    state: Literal["running", "done", "failed", "rejected"]
    age_s: float
    num_prompt_tokens: int
    num_matched_tokens: int
    num_generated_tokens: int
    prefill: NodeId | None
    decode: NodeId | None
    predicted_ttft_s: float | None
    actual_ttft_s: float | None
    policy: str
    candidates: list[Candidate]
    why: str = ""
    predicted_tbt_s: float | None = None
    actual_tbt_s: float | None = None
    """Mean over the answer; None for one of a single token."""
    is_cancelled: bool = False
    """Its state is done, but its answer was given up before the end; `why` says by whom."""
    is_guess: bool = False
    """TTFT was predicted before the prefill instance had measured anything."""
    ahead: list[Ahead] = msgspec.field(default_factory=list)
    num_decode_steps: int = 0
    """0: not known."""
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    """Of the drafted ones."""

    @property
    def outcome(self) -> str:
        """The state, or that it was cancelled: in words for people."""
        return "cancelled" if self.is_cancelled else self.state


class ListRequestsReply(Message, frozen=True, kw_only=True):
    requests: list[ListedRequest]
