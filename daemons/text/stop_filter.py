"""Stop strings over a stream of text pieces: nothing that may become one is let through.

Knuth-Morris-Pratt, a state per stop string, so the answer does not depend on how the text was cut into pieces
and each character costs O(1) amortised. The stop that ends first wins; of two that end together, the longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


def _failure_table(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper suffix that is a prefix too."""
    table, length = [0] * len(pattern), 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        length += pattern[index] == pattern[length]
        table[index] = length
    return table


@dataclass(slots=True)
class _Matcher:
    pattern: str
    table: list[int] = field(init=False)
    length: int = 0
    """Longest suffix of the text so far that begins the pattern."""

    def __post_init__(self) -> None:
        self.table = _failure_table(self.pattern)

    def step(self, character: str) -> bool:
        while self.length and self.pattern[self.length] != character:
            self.length = self.table[self.length - 1]
        self.length += self.pattern[self.length] == character
        return self.length == len(self.pattern)


class StopFilter:
    """One per answer. Empty stop strings are the caller's mistake."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._matchers = [_Matcher(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, piece: str) -> str:
        """The text that may be shown now; nothing more after a stop string was met."""
        if self.stopped_by is not None:
            return ""
        if not self._matchers:
            return piece
        text = self._held + piece
        for index in range(len(self._held), len(text)):
            if hits := [matcher for matcher in self._matchers if matcher.step(text[index])]:
                self.stopped_by = hits[0].pattern
                self._held = ""
                return text[: index + 1 - len(self.stopped_by)]
        num_held = max(matcher.length for matcher in self._matchers)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def finish(self) -> str:
        """The held text of a stream that ended without a stop string."""
        held, self._held = self._held, ""
        return held
