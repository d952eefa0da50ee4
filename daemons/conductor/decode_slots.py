"""The requests that decode instances have, as numpy columns: when each begins and ends, and what context it holds."""

from typing import Final

import numpy as np

from daemons.conductor.columns import Floats, Ints

_FIRST_SLOTS: Final = 4
MAX_SLOTS: Final = 512
"""What a decode instance has beyond counts as never ending."""


class DecodeSlots:
    """A row for each row of the InstanceTable, a slot in it for each request, up to MAX_SLOTS; an unused one never
    begins nor ends and holds nothing.

    `first_end_s` and `all_context_tokens` are the least and the sum of each row, so that most rows need not be looked
    into.
    """

    def __init__(self, num_rows: int) -> None:
        self.begins_s: Floats = np.full((num_rows, _FIRST_SLOTS), np.inf)
        self.ends_s: Floats = np.full((num_rows, _FIRST_SLOTS), np.inf)
        self.context_tokens: Ints = np.zeros((num_rows, _FIRST_SLOTS), np.int64)
        self.first_end_s: Floats = np.full(num_rows, np.inf)
        self.all_context_tokens: Ints = np.zeros(num_rows, np.int64)

    def has_room(self, slot: int) -> bool:
        """Makes it for a request with this number on one instance; False when there are too many."""
        if slot >= MAX_SLOTS:
            return False
        missing = slot + 1 - self.ends_s.shape[1]
        if missing > 0:
            self._pad(num_rows=0, num_slots=max(missing, self.ends_s.shape[1]))
        return True

    def take(self, row: int, slot: int, *, begin_s: float, end_s: float, num_tokens: int) -> None:
        """A request is there from `begin_s` to `end_s`, as predicted. `slot` is free and `has_room` was asked."""
        self.begins_s[row, slot] = begin_s
        self.ends_s[row, slot] = end_s
        self.context_tokens[row, slot] = num_tokens
        self.first_end_s[row] = min(self.first_end_s.item(row), end_s)
        self.all_context_tokens[row] += num_tokens

    def free(self, row: int, slot: int) -> None:
        self.all_context_tokens[row] -= self.context_tokens[row, slot]
        self.begins_s[row, slot] = np.inf
        self.ends_s[row, slot] = np.inf
        self.context_tokens[row, slot] = 0
        self.first_end_s[row] = self.ends_s[row].min()

    def clear(self, row: int) -> None:
        """The instance has left."""
        self.begins_s[row] = np.inf
        self.ends_s[row] = np.inf
        self.context_tokens[row] = 0
        self.first_end_s[row] = np.inf
        self.all_context_tokens[row] = 0

    def add_rows(self, num_rows: int) -> None:
        self._pad(num_rows=num_rows, num_slots=0)
        self.first_end_s = np.pad(self.first_end_s, (0, num_rows), constant_values=np.inf)
        self.all_context_tokens = np.pad(self.all_context_tokens, (0, num_rows))

    def check_invariants(self) -> None:
        """For tests."""
        assert (self.first_end_s == self.ends_s.min(axis=1)).all()
        assert (self.all_context_tokens == self.context_tokens.sum(axis=1)).all()

    def _pad(self, *, num_rows: int, num_slots: int) -> None:
        more = ((0, num_rows), (0, num_slots))
        self.begins_s = np.pad(self.begins_s, more, constant_values=np.inf)
        self.ends_s = np.pad(self.ends_s, more, constant_values=np.inf)
        self.context_tokens = np.pad(self.context_tokens, more)
