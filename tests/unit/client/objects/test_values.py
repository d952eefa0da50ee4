"""Memory that values are read into: what would be torn is refused before anything is read."""

import numpy as np
import pytest

from daemons.client.objects.values import targets_of
from daemons.core.errors import Rejected, TransferError


def test_targets_that_overlap_are_refused_but_not_the_same_value_twice() -> None:
    memory = np.zeros(300, np.uint8)
    first, second, across = memory[:100], memory[100:200], memory[99:150]
    arrays, _ = targets_of([("b", second), ("a", first), ("a", first), ("empty", memory[50:50])])
    assert [array.nbytes for array in arrays] == [100, 100, 100, 0]
    for torn in ([("a", first), ("b", across)], [("b", across), ("a", first)]):
        with pytest.raises(Rejected, match=r"the targets of values . and . of this call overlap"):
            targets_of(torn)
    with pytest.raises(Rejected):
        targets_of([("a", first), ("other", first)])
    with pytest.raises(TransferError, match="read-only"):
        targets_of([("a", np.frombuffer(b"abc", np.uint8))])
