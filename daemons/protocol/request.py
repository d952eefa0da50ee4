"""A request on its way: schedule at the master, generate on a decode node, prefill on a prefill node."""

from typing import Literal

import msgspec

from daemons.core.ids import BlockHash, HostId, Incarnation, NodeId, RequestId
from daemons.protocol.base import Message, Record
from daemons.protocol.lookup import Spares
from daemons.protocol.packed import BlockLocations
from daemons.protocol.segment import Source

FinishReason = Literal["stop", "length", "cancelled"]
CacheUse = Literal["use", "bypass"]
"""bypass: neither read the pool nor publish to it (how answers with and without reuse are compared)."""


class SamplingParams(Record, frozen=True, kw_only=True):
    """temperature 0 is greedy. Stop strings are the gateway's: it sees text, and cancels."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    seed: int = 0
    ignore_eos: bool = False


class Schedule(Message, frozen=True, kw_only=True):
    """Gateway to master: who serves this, and which of its blocks exist. `exclude` failed just now for this request."""

    request_id: RequestId
    model: str
    num_prompt_tokens: int
    max_tokens: int
    hashes: list[BlockHash]
    """Full blocks of the prompt, in order."""
    tenant: str = ""
    exclude: list[NodeId] = msgspec.field(default_factory=list)
    namespace: bytes = b""
    """What the hashes are chained from; only instances of this namespace may serve. Empty: any of the model."""
    priority: int = 0
    """Under load those of a lower one are refused first; -10 to 10."""


class InstanceAddress(Record, frozen=True, kw_only=True):
    node: NodeId
    control: str
    host_id: HostId


class PutTarget(Record, frozen=True, kw_only=True):
    """The cache node that new blocks of this request are offered to."""

    node: NodeId
    control: str


class Candidate(Record, frozen=True, kw_only=True):
    """One option the Conductor weighed, every term in seconds; for `request explain` and the logs."""

    node: NodeId
    queue_s: float
    load_s: float
    prefill_s: float
    total_s: float
    matched_tokens: int
    delay_s: float = 0.0
    """What its work adds to the wait of those behind, where the policy looks at that; not in `total_s`."""
    device_tokens: int = 0
    """Of these, what lies in the KV arena of the instance itself."""


class Plan(Message, frozen=True, kw_only=True):
    """The master's answer to Schedule. Matched blocks are leased; the plan travels with the request."""

    request_id: RequestId
    incarnation: Incarnation
    prefill: InstanceAddress
    decode: InstanceAddress
    matched: BlockLocations
    put_target: PutTarget | None
    predicted_ttft_s: float
    candidates: list[Candidate] = msgspec.field(default_factory=list)
    policy: str = ""
    spares: Spares | None = None
    """Other replicas of the matched blocks."""
    predicted_tbt_s: float = 0.0
    is_guess: bool = False
    """The prefill instance had measured nothing yet: the prediction of TTFT is none to rely on."""


class Generate(Message, frozen=True, kw_only=True):
    """Gateway to decode: stream the answer. Replies: Started, then FirstToken, Tokens..., then GenerateReply."""

    request_id: RequestId
    model: str
    namespace: bytes
    tokens: list[int]
    hashes: list[BlockHash]
    sampling: SamplingParams
    plan: Plan
    cache: CacheUse = "use"
    tenant: str = ""
    drafts: bool = True
    """Whether tokens may be guessed and tried several at once; the answer is the same."""


class Tokens(Message, frozen=True, kw_only=True):
    """Stream part of Generate: new tokens in order; the first one comes from prefill."""

    tokens: list[int]


class Timing(Record, frozen=True, kw_only=True):
    """Where the time of one request went; seconds on the clock of the process that measured them.

    `overhead_s` is everything between the arrival at decode and the first token that is not model compute.
    """

    prefill_queue_s: float = 0.0
    load_s: float = 0.0
    """Time spent loading reused KV; overlaps compute."""
    load_wait_s: float = 0.0
    """Time the model stood still for it."""
    compute_s: float = 0.0
    """Model compute until the first token."""
    first_token_s: float = 0.0
    """Arrival at decode until the first token was there."""
    handoff_s: float = 0.0
    """First token until decode had all KV."""
    decode_s: float = 0.0
    decode_steps: int = 0
    """Steps of decode that made its tokens; fewer than tokens where drafts were right. 0: not said."""
    drafted_tokens: int = 0
    """Tokens that decode guessed and tried."""
    accepted_tokens: int = 0
    """Of these, those that were right, each without a step of its own."""
    pulled_bytes: int = 0
    """prefill -> decode"""
    loaded_bytes: int = 0
    """pool -> prefill and pool -> decode"""


class GenerateReply(Message, frozen=True, kw_only=True):
    """End of the stream of Generate."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_reused_tokens: int
    num_generated_tokens: int
    num_published_blocks: int
    """Blocks of prompt and answer that were offered to the pool; those that were reused are there already."""
    timing: Timing
    prefill_node: NodeId
    decode_node: NodeId


class Prefill(Message, frozen=True, kw_only=True):
    """Decode to prefill. Replies: PrefillStarted, LayersReady..., then PrefillReply with the first token.

    The slot is held until Pulled, Cancel, or `hold_ms` after the reply; then its generation is raised.
    """

    request_id: RequestId
    model: str
    namespace: bytes
    tokens: list[int]
    hashes: list[BlockHash]
    sampling: SamplingParams
    matched: BlockLocations
    put_target: PutTarget | None
    cache: CacheUse
    tenant: str
    hold_ms: int = 30_000
    spares: Spares | None = None


class PrefillStarted(Message, frozen=True, kw_only=True):
    """Stream part: the prompt's slot. Row r of `kv` is (layer r // 2, k if r is even else v), all its tokens."""

    kv: Source
    bytes_per_token_row: int
    num_reused_tokens: int


class LayersReady(Message, frozen=True, kw_only=True):
    """Stream part: KV of tokens [start, end) of layers [first_layer, last_layer] may be pulled."""

    first_layer: int
    last_layer: int
    start: int
    end: int


class PrefillReply(Message, frozen=True, kw_only=True):
    """All KV is ready. Every LayersReady of the request was sent before."""

    first_token: int
    num_reused_tokens: int
    timing: Timing
    num_published_blocks: int = 0
    """Blocks of the prompt that were offered to the pool."""


class Pulled(Message, frozen=True, kw_only=True):
    """Decode to prefill: all KV arrived; the slot may go once publishing ended."""

    request_id: RequestId


class Cancel(Message, frozen=True, kw_only=True):
    """Stop a request at once and free all it holds; fine to send for one that already ended."""

    request_id: RequestId
    is_complete: bool = False
    """All that was asked for is there: its text met a stop string. False: nobody waits for the answer any more."""
    why: str = ""


class RequestDone(Message, frozen=True, kw_only=True):
    """Decode to master: the request has ended; feeds the load view and the request log."""

    request_id: RequestId
    node: NodeId
    ok: bool
    why: str = ""
    num_reused_tokens: int = 0
    num_generated_tokens: int = 0
    timing: Timing | None = None
    is_cancelled: bool = False
    """Given up by who had asked, before or after its first token; `why` says it in words."""
