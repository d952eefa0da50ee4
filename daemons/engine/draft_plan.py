"""Which sequences of a decode step get drafts, and how long: as many tokens a second as can be expected.

A step of more rows takes longer, by what was measured of the steps before; a draft of a chance c brings c + c^2 + ...
tokens. Drafts grow where the next tokens cost least, for as long as that makes the mean token cheaper.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Final

from daemons.engine.base import Made
from daemons.engine.cost_fit import StepFit
from daemons.engine.drafts import Drafter
from daemons.engine.geometry import CHUNK_TOKENS
from daemons.engine.sequence import Sequence

MAX_ROWS: Final = 32
"""Of a step: products read the weights once for so many, and take little longer than for one."""
_LEAST_SHARE: Final = 0.01
_FIRST_SHARE: Final = 0.03
_MOST_SHARE: Final = 1.0
"""Of a step without drafts, what a row more takes: bounds of the measured, and a guess before that."""
_LEAST_SAMPLES: Final = 40
_FIT_EVERY: Final = 16
"""Steps between two looks at the fit: a look costs as much as the plan of a step."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A sequence that may have one of the draft lengths `lengths`, ascending."""

    row: int
    chance: float
    lengths: tuple[int, ...]


class Drafting:
    """Drafters of the sequences under way, and what rows cost."""

    def __init__(self, max_drafts: int) -> None:
        """`max_drafts`: of one sequence in a step; 0 is off."""
        self._max_drafts = max_drafts
        self._drafters: dict[Sequence, Drafter] = {}
        self._fit = StepFit()
        self._num_steps = 0
        self._row_share = _FIRST_SHARE

    def plan(self, step: Many[Sequence], lengths: Many[int]) -> list[tuple[int, ...]]:
        """A draft, or none, of each; `lengths` are those that the engine can try."""
        lengths = [length for length in lengths if length <= self._max_drafts]
        if not lengths:
            return [()] * len(step)
        self._drafters = {each: self._drafters.get(each) or Drafter() for each in step}
        wishes = []
        for row, sequence in enumerate(step):
            if not sequence.may_draft:
                continue
            room = room_for_drafts(sequence)
            fitting = tuple(length for length in lengths if length <= room)
            drafter = self._drafters[sequence]
            if drafter.look(sequence.tokens) and fitting:
                wishes.append(Wish(row, drafter.chance, fitting))
        chosen = share_rows(wishes, len(step), self._row_share)
        for wish in wishes:
            if not chosen[wish.row] and self._drafters[step[wish.row]].is_due():
                chosen[wish.row] = wish.lengths[0]
        num_rows = len(step)
        drafts: list[tuple[int, ...]] = []
        for sequence, length in zip(step, chosen, strict=True):
            num_rows += length
            is_taken = length and num_rows <= MAX_ROWS
            drafts.append(
                self._drafters[sequence].draft(sequence.tokens, length) if is_taken else ()
            )
        return drafts

    def learn(self, step: Many[Sequence], made: Many[Made], elapsed_s: float) -> None:
        """What came of the step; `tokens` of the sequences are still those of `plan`."""
        if not self._drafters:
            return
        for sequence, each in zip(step, made, strict=True):
            if each.num_drafts:
                self._drafters[sequence].learn(each.num_drafts, len(each.tokens) - 1)
        num_rows = len(step) + sum(each.num_drafts for each in made)
        context = sum(len(sequence.tokens) for sequence in step)
        self._fit.observe(num_rows, context, elapsed_s)
        self._num_steps += 1
        if self._num_steps >= _LEAST_SAMPLES and self._num_steps % _FIT_EVERY == 0:
            fixed_s, row_s, context_s = self._fit.coefficients()
            plain_s = fixed_s + row_s * (len(step) - 1) + context_s * context
            share = row_s / plain_s if plain_s > 0 else _FIRST_SHARE
            self._row_share = min(_MOST_SHARE, max(_LEAST_SHARE, share))


def room_for_drafts(sequence: Sequence) -> int:
    """The longest draft: within the chunk of the next token, and one short of the last token that may be made."""
    in_chunk = CHUNK_TOKENS - 1 - sequence.position % CHUNK_TOKENS
    return min(in_chunk, sequence.max_length - len(sequence.tokens) - 1)


def share_rows(wishes: Many[Wish], num_sequences: int, row_share: float) -> list[int]:
    """The draft length of each sequence, 0 for those without a wish.

    Greedy by tokens a row, as a longer draft's next token is less likely than its last one; `row_share`: what a row
    more takes, in steps without drafts.
    """
    chosen = [0] * num_sequences
    free, time, tokens = MAX_ROWS - num_sequences, 1.0, float(num_sequences)
    open_wishes = {wish.row: wish for wish in wishes}
    while open_wishes:
        options = []
        for wish in open_wishes.values():
            has = chosen[wish.row]
            longer = next((length for length in wish.lengths if length > has), None)
            if longer is not None and longer - has <= free:
                gain = sum(wish.chance**more for more in range(has + 1, longer + 1))
                options.append((gain / (longer - has), wish.row, longer, gain))
        if not options:
            break
        a_row, row, longer, gain = max(options)
        if a_row <= row_share * tokens / time:
            break
        added = longer - chosen[row]
        chosen[row], free = longer, free - added
        time, tokens = time + added * row_share, tokens + gain
    return chosen
