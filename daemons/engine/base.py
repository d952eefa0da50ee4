"""What an instance needs of whatever computes; each home of an engine is a file beside this one. Free of torch.

`torch_engine.py` runs a checkpoint, `paced.py` takes the times that a hardware profile states.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

from daemons.core.errors import McError
from daemons.engine.arena.slots import Slot
from daemons.engine.decode.sequence import Sequence
from daemons.engine.geometry import KvGeometry
from daemons.protocol.request import SamplingParams


class Cancelled(McError):
    """The request was given up while its prompt was being computed."""

    code = "cancelled"


class PrefillHooks(Protocol):
    """What a prefill tells its owner; called on the thread that runs the model."""

    def before_layer(self, layer: int) -> None:
        """Return once the reused prefix of `layer` is in the slot; first chunk only."""

    def after_layer(self, layer: int, start: int, end: int) -> None:
        """KV of `layer` for positions [start, end) is in the slot and final."""

    def is_cancelled(self) -> bool:
        """Asked between layers."""


class NoHooks:
    """For callers without reuse, transfer or cancellation."""

    def before_layer(self, layer: int) -> None: ...

    def after_layer(self, layer: int, start: int, end: int) -> None: ...

    def is_cancelled(self) -> bool:
        return False


class Arena(Protocol):
    """Slots; one owner calls it."""

    @property
    def geometry(self) -> KvGeometry: ...

    @property
    def capacity_tokens(self) -> int: ...

    @property
    def free_tokens(self) -> int: ...

    @property
    def num_live(self) -> int: ...

    def allocate(self, num_tokens: int) -> Slot:
        """Raises Exhausted when none fits now."""

    def renew(self, slot: Slot) -> Slot:
        """The memory of a live slot as the slot of another sequence, with what is in it."""

    def free(self, slot: Slot) -> None:
        """The caller has raised its generation."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a step made of one sequence: one token, and one more for each of its drafts that was right."""

    tokens: tuple[int, ...]
    num_drafts: int = 0
    """Tokens that were guessed and tried."""


class Engine(Protocol):
    """Makes tokens. One thread calls it, but for `upload` and `download`, which any may for a slot that it holds."""

    def prefill(
        self,
        slot: Slot,
        tokens: list[int],
        start: int,
        hooks: PrefillHooks,
        sampling: SamplingParams,
    ) -> int:
        """Compute positions [start, len(tokens)); the token that follows. Raises Cancelled."""

    def decode(self, step: Many[Sequence]) -> list[Made]:
        """One more token of each, or several."""

    def upload(self, slot: Slot, start: int, end: int, layer: int | None = None) -> None:
        """From the memory that peers see to where compute happens: tokens [start, end) of one layer, or of all."""

    def download(self, slot: Slot, start: int, end: int, layer: int | None = None) -> None:
        """The other way; on return peers may read them."""
