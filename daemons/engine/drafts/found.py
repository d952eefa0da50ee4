"""Drafts: the tokens that followed when a sequence said the same words before, to be tried with its next token.

Prompt lookup, the n-gram form of speculative decoding: answers quote their prompt and themselves, and a decode step
that reads all weights takes a few rows more for nearly nothing. A draft decides nothing: the engine keeps as many of
its tokens as it would have sampled one by one, so they cost time at worst. Free of torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

LONG: Final = 3
SHORT: Final = 2
"""Tokens that must have been said before: preferably so many, else so few."""
MAX_INDEXED: Final = 16_384
"""Tokens after which an index begins anew; it keeps the one before, so twice as many are known at most."""
MAX_CAUGHT_UP: Final = 512
"""Tokens of a prompt that one look-up takes in: half a millisecond."""
_TOKEN_BITS: Final = 20

FIRST_CHANCE: Final = {LONG: 0.3, SHORT: 0.2}
"""That a token of a draft is right, before anything is known, by tokens that were alike."""
_WEIGHT: Final = 0.2
"""Of the newest token in a chance."""
_FIRST_REST: Final = 8
_MAX_REST: Final = 64
"""Guesses that are not tried, after one that did not pay and failed, before one is: twice as many each time."""


class NgramIndex:
    """Where the last tokens of a growing sequence stood before. O(1) a token; bounded."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._seen_before: dict[int, int] = {}
        self._num_indexed = 0
        self._num_since = 0

    def find(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """(where what followed begins, tokens that were alike) of the latest such place.

        `tokens` are those of the call before and more. A long prompt is taken in over several calls.
        """
        self._take_in(tokens)
        for length in (LONG, SHORT):
            if len(tokens) >= length:
                key = _key(tokens, len(tokens), length)
                at = self._seen.get(key) or self._seen_before.get(key)
                if at is not None:
                    return at, length
        return None

    def _take_in(self, tokens: Sequence[int]) -> None:
        end = min(len(tokens), self._num_indexed + MAX_CAUGHT_UP)
        for at in range(max(self._num_indexed, LONG), end):
            self._seen[_key(tokens, at, LONG)] = at
            self._seen[_key(tokens, at, SHORT)] = at
        self._num_since += end - self._num_indexed
        self._num_indexed = end
        if self._num_since >= MAX_INDEXED:
            self._seen_before, self._seen, self._num_since = self._seen, {}, 0


def _key(tokens: Sequence[int], end: int, length: int) -> int:
    """The `length` tokens before `end`, and how many they are."""
    key = length
    for token in tokens[end - length : end]:
        key = key << _TOKEN_BITS | token
    return key


@dataclass(slots=True)
class Drafter:
    """Of one sequence: what it may guess, and how often it was right."""

    chances: dict[int, float] = field(default_factory=lambda: dict(FIRST_CHANCE))
    """By tokens that were alike."""
    index: NgramIndex = field(default_factory=NgramIndex)
    alike: int = LONG
    """Of the present guess."""
    _start: int | None = None
    _rest: int = _FIRST_REST
    _num_untried: int = 0

    @property
    def chance(self) -> float:
        """That the next token of the present guess is right, given that those before it were."""
        return self.chances[self.alike]

    def look(self, tokens: Sequence[int]) -> bool:
        """Whether there is a guess of what follows `tokens`. Call it once a step."""
        found = self.index.find(tokens)
        self._start, self.alike = found or (None, LONG)
        return found is not None

    def is_due(self) -> bool:
        """Asked of a guess that does not seem to pay: whether to try it all the same."""
        self._num_untried += 1
        return self._num_untried > self._rest

    def draft(self, tokens: Sequence[int], length: int) -> tuple[int, ...]:
        """So many tokens of the guess; where the text ends, its own tokens go on as the text did."""
        assert self._start is not None, "there is no guess"
        draft: list[int] = []
        for at in range(self._start, self._start + length):
            draft.append(tokens[at] if at < len(tokens) else draft[at - len(tokens)])
        return tuple(draft)

    def learn(self, num_drafts: int, num_right: int) -> None:
        """What became of a draft."""
        chance = self.chances[self.alike]
        for _ in range(num_right):
            chance += _WEIGHT * (1 - chance)
        if num_right < num_drafts:
            chance -= _WEIGHT * chance
        self.chances[self.alike] = chance
        if self._num_untried > self._rest or num_right:
            self._rest = _FIRST_REST if num_right else min(2 * self._rest, _MAX_REST)
            self._num_untried = 0
