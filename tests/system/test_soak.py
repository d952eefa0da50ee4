"""A short soak in the slow tier; `make soak` runs it as long as one likes."""

from pathlib import Path

import pytest
from soak.__main__ import soak


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_nothing_acknowledged_is_lost_torn_or_undone_while_everything_fails(tmp_path: Path) -> None:
    assert soak(30.0, seed=1, disk=tmp_path) == []
