"""Which sequences of a decode step get drafts, and how long: as many tokens a second as can be expected.

A step of more rows takes longer, by what was measured of the steps before; a draft of a chance c brings c + c^2 + ...
tokens. Drafts grow where the next tokens cost least, for as long as that makes the mean token cheaper. What drafts cost
is paid from a credit that right ones fill: text that they do not suit loses a hundredth of its time to them.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Final

from daemons.engine.base import Made
from daemons.engine.decode.sequence import Sequence
from daemons.engine.drafts.costs import DraftCosts, MeasuredCosts
from daemons.engine.drafts.found import FIRST_CHANCE, Drafter
from daemons.engine.geometry import CHUNK_TOKENS

MAX_ROWS: Final = 32
"""Of a step: products read the weights once for so many, and take little longer than for one."""
FIRST_CREDIT: Final = 0.5
MOST_CREDIT: Final = 1.0
CREDIT_A_STEP: Final = 0.01
"""In steps without drafts. At most so much is lost before drafts rest, and then such a share of the time."""
_LEARNED: Final = 0.1
"""What a sequence's chance moves that of the sequences to come."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A sequence that may have one of the draft lengths `lengths`, ascending."""

    row: int
    chance: float
    lengths: tuple[int, ...]


class Drafting:
    """Drafters of the sequences under way, what drafts cost and what they have brought."""

    def __init__(self, max_drafts: int) -> None:
        """`max_drafts`: of one sequence in a step; 0 is off."""
        self.credit = FIRST_CREDIT
        self._max_drafts = max_drafts
        self._drafters: dict[Sequence, Drafter] = {}
        self._first_chances = dict(FIRST_CHANCE)
        """Of the sequences to come: those before them say what kind of text is served here."""
        self._measured = MeasuredCosts()

    def plan(self, step: Many[Sequence], lengths: Many[int]) -> list[tuple[int, ...]]:
        """A draft, or none, of each; `lengths` are those that the engine can try."""
        lengths = [length for length in lengths if length <= self._max_drafts]
        if not lengths:
            return [()] * len(step)
        self._drafters = {
            each: self._drafters.get(each) or Drafter(dict(self._first_chances)) for each in step
        }
        if self.credit <= 0:
            return [()] * len(step)
        wishes = self._wishes(step, lengths)
        chosen = choose_lengths(wishes, len(step), self._measured.costs)
        if not any(chosen):
            self._try_due(step, wishes, chosen)
        return [
            self._drafters[sequence].draft(sequence.tokens, length) if length else ()
            for sequence, length in zip(step, chosen, strict=True)
        ]

    def _wishes(self, step: Many[Sequence], lengths: Many[int]) -> list[Wish]:
        wishes = []
        for row, sequence in enumerate(step):
            if not sequence.may_draft:
                continue
            room = room_for_drafts(sequence)
            fitting = tuple(length for length in lengths if length <= room)
            drafter = self._drafters[sequence]
            if drafter.look(sequence.tokens) and fitting:
                wishes.append(Wish(row, drafter.chance, fitting))
        return wishes

    def _try_due(self, step: Many[Sequence], wishes: Many[Wish], chosen: list[int]) -> None:
        """Guesses that do not seem to pay are tried now and then, the likeliest first: texts change."""
        due = [wish for wish in wishes if self._drafters[step[wish.row]].is_due()]
        wish = max(due, key=lambda each: each.chance, default=None)
        if wish is not None and len(step) + wish.lengths[0] <= MAX_ROWS:
            chosen[wish.row] = wish.lengths[0]
            if self._measured.costs.of(chosen) > self.credit:
                chosen[wish.row] = 0

    def learn(self, step: Many[Sequence], made: Many[Made], elapsed_s: float) -> None:
        """What came of the step; `tokens` of the sequences are still those of `plan`."""
        if not self._drafters:
            return
        drafts = [each.num_drafts for each in made]
        num_right = 0
        for sequence, each in zip(step, made, strict=True):
            if each.num_drafts:
                drafter = self._drafters[sequence]
                drafter.learn(each.num_drafts, len(each.tokens) - 1)
                num_right += len(each.tokens) - 1
                more = drafter.chance - self._first_chances[drafter.alike]
                self._first_chances[drafter.alike] += _LEARNED * more
        gain = num_right / len(step) - self._measured.costs.of(drafts)
        self.credit = min(MOST_CREDIT, self.credit + CREDIT_A_STEP + gain)
        context = sum(len(sequence.tokens) for sequence in step)
        self._measured.observe(drafts, context, elapsed_s)


def room_for_drafts(sequence: Sequence) -> int:
    """The longest draft: within the chunk of the next token, and one short of the last token that may be made."""
    in_chunk = CHUNK_TOKENS - 1 - sequence.position % CHUNK_TOKENS
    return min(in_chunk, sequence.max_length - len(sequence.tokens) - 1)


def choose_lengths(wishes: Many[Wish], num_sequences: int, costs: DraftCosts) -> list[int]:
    """The draft length of each sequence, 0 for those without a wish: whichever plan makes most tokens a second.

    A further length in a step costs once, however many have it, so a plan of one length is weighed too.
    """
    longest = share_rows(wishes, num_sequences, costs.row)
    level = min((length for length in longest if length), default=0)
    if not level:
        return longest
    chances = {wish.row: wish.chance for wish in wishes}

    def speed(chosen: list[int]) -> float:
        gains = (expected(chances[row], length) for row, length in enumerate(chosen) if length)
        return (num_sequences + sum(gains)) / (1 + costs.of(chosen))

    plans = [longest, [min(level, length) for length in longest], [0] * num_sequences]
    return max(plans, key=speed)


def expected(chance: float, length: int, has: int = 0) -> float:
    """Right tokens of a draft behind its first `has` ones."""
    return sum(chance**more for more in range(has + 1, length + 1))


def share_rows(wishes: Many[Wish], num_sequences: int, row_share: float) -> list[int]:
    """The draft length of each sequence where drafts cost nothing but `row_share`: what a row more takes, in steps.

    Greedy by tokens a row, as a longer draft's next token is less likely than its last one.
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
                gain = expected(wish.chance, longer, has)
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
