"""Values written to files: whole, or not at all and with the exit status of its family."""

from pathlib import Path

import pytest

from daemons.core.errors import ConfigError, Exhausted
from mcctl.cache.object_store import write_value
from mcctl.exit_codes import exit_code


def test_a_value_for_which_the_disk_has_no_room_is_exhausted() -> None:
    with pytest.raises(Exhausted, match=r"/dev/full: No space left on device; 1\.0 MiB") as caught:
        write_value(Path("/dev/full"), bytes(1 << 20))
    assert exit_code(caught.value) == 6


def test_a_value_that_cannot_be_written_is_the_fault_of_the_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        write_value(tmp_path / "none" / "x", b"value")
    write_value(tmp_path / "x", b"value")
    assert (tmp_path / "x").read_bytes() == b"value"
