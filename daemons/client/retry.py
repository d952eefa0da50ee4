"""What to do when an attempt at a request fails, and which tokens of a later attempt are new. Pure.

Before the first token an attempt is free to be repeated elsewhere. After it, the answer is generated again with the
same seed and the tokens already delivered are skipped: sampling is counter-based, so they are the same ones, and a
death of the decode node is invisible. Tokens that differ would garble the answer: that ends the request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from daemons.core.errors import (
    Exhausted,
    McError,
    NotFound,
    ProtocolError,
    TransferError,
    Unavailable,
)
from daemons.core.ids import NodeId
from daemons.protocol.address import address_of
from daemons.protocol.request import Plan

MAX_RETRIES: Final = 2
MAX_REPLAYS: Final = 1
MIN_ATTEMPT_S: Final = 0.2
"""An attempt with less time left than this is not begun."""

Stage = Literal["schedule", "generate"]


@dataclass(frozen=True, slots=True)
class Retry:
    """Effect: schedule again after `delay_s`, keeping away from `exclude`."""

    exclude: tuple[NodeId, ...]
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Effect: tell the client."""

    error: McError


@dataclass(slots=True)
class Progress:
    """One request over all its attempts."""

    max_tokens: int
    max_retries: int = MAX_RETRIES
    delivered: list[int] = field(default_factory=list)
    num_retries: int = 0
    num_replays: int = 0
    exclude: tuple[NodeId, ...] = ()
    can_relax: bool = False
    """The excluded nodes may serve after all: they answered, or what failed them may have passed."""
    _position: int = 0
    """Tokens that the current attempt has produced."""

    @property
    def num_attempts(self) -> int:
        return 1 + self.num_retries + self.num_replays

    def start_attempt(self) -> None:
        self._position = 0

    def accept(self, tokens: Sequence[int]) -> list[int]:
        """The tokens among these that were not delivered yet; ProtocolError when the answer would change."""
        known = self.delivered[self._position : self._position + len(tokens)]
        if known != list(tokens[: len(known)]):
            raise ProtocolError("generating the answer again gave other tokens; ask again")
        new = list(tokens[len(known) :])
        if len(self.delivered) + len(new) > self.max_tokens:
            raise ProtocolError(f"more than max_tokens={self.max_tokens} tokens were generated")
        self._position += len(tokens)
        self.delivered.extend(new)
        return new

    def check_complete(self) -> None:
        """An attempt may not end before what was delivered does."""
        if self._position < len(self.delivered):
            raise ProtocolError("generating the answer again gave fewer tokens; ask again")

    def after_failure(
        self, error: McError, *, stage: Stage, plan: Plan | None, left_s: float
    ) -> Retry | GiveUp:
        """`left_s` is what remains of the request's deadline."""
        if stage == "schedule" or plan is None:
            return self._after_refused_schedule(error)
        delay_s = min(0.5, (error.retry_after_ms or 0) / 1000)
        if not isinstance(error, Unavailable | TransferError | Exhausted):
            return GiveUp(error)
        if left_s - delay_s < MIN_ATTEMPT_S or not self._may_try_again():
            return GiveUp(error)
        self.exclude = tuple(dict.fromkeys(self.exclude + failing_nodes(error, plan)))
        self.can_relax = not isinstance(error, Unavailable)
        return Retry(self.exclude, delay_s)

    def _may_try_again(self) -> bool:
        if self.delivered:
            may = self.num_replays < MAX_REPLAYS
            self.num_replays += may
        else:
            may = self.num_retries < self.max_retries
            self.num_retries += may
        return may

    def _after_refused_schedule(self, error: McError) -> Retry | GiveUp:
        """Avoiding a node is a wish: without another one, a node that only stumbled is asked again, once."""
        if (
            self.exclude
            and self.can_relax
            and isinstance(error, Unavailable | Exhausted | NotFound)
        ):
            self.exclude, self.can_relax = (), False
            return Retry((), 0.05)
        return GiveUp(error)


def failing_nodes(error: McError, plan: Plan) -> tuple[NodeId, ...]:
    """Which of the plan's nodes to avoid: the one the error names by role or address, else the likeliest.

    Ids alone are not looked for: a node may be called "prefill", which any sentence may contain.
    """
    for role, instance in (("prefill node", plan.prefill), ("decode node", plan.decode)):
        if role in error.message or address_of(instance.control) in error.message:
            return (instance.node,)
    return (plan.prefill.node if isinstance(error, TransferError) else plan.decode.node,)
