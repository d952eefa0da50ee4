"""Locks between processes: exclusion, bounded waits, and what is said to who comes second."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemons.core.errors import ConfigError, Conflict, Exhausted
from daemons.core.file_lock import (
    CannotLock,
    FileLock,
    Refusal,
    lock_beside,
    lock_open_file,
    locked,
    unlock_open_file,
)

SECOND = Refusal(error=Conflict, what="the cup", next_step="wait for it")
HOLD = """
import sys
from pathlib import Path
from daemons.core.file_lock import FileLock, Refusal
from daemons.core.errors import Conflict
FileLock(Path(sys.argv[1]), Refusal(error=Conflict, what="-", next_step="-"))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def other_process(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Holds the lock until its stdin closes."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_who_comes_second_is_told_who_holds_it_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with other_process(path) as process:
        with pytest.raises(Conflict) as refused:
            FileLock(path, SECOND)
        said = str(refused.value)
        # The second: on a file system whose device the kernel's table names otherwise, such as an overlay.
        by_number = f"the cup is held by pid {process.pid} ({sys.executable} -c import sys from"
        assert said.startswith((by_number[:70], "the cup is held by another process"))
        assert said.endswith("; wait for it")


def test_a_killed_process_holds_nothing_and_the_wait_ends_when_it_does(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    told: list[str] = []
    with other_process(path) as process:

        def end_it(holder: str) -> None:
            told.append(holder)
            process.kill()

        with FileLock(path, SECOND, wait_s=60.0, on_wait=end_it):
            assert len(told) == 1
            assert process.wait(20) != 0


def test_two_holders_in_one_process_exclude_each_other_and_a_wait_is_bounded(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    with FileLock(path, SECOND):
        num_open = num_open_files()
        for wait_s in (0.0, 0.05):
            with pytest.raises(Conflict, match=r"held by (this|another) process; wait for it"):
                FileLock(path, SECOND, wait_s=wait_s)
        assert num_open_files() == num_open, "a refusal leaves nothing open"
    lock = FileLock(path, SECOND)
    lock.release()
    lock.release()
    assert path.exists()


def test_no_other_thread_is_between_the_reading_and_the_writing_of_a_locked_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "count"
    path.write_text("0")

    def add() -> None:
        for _ in range(20):
            with locked(path, wait_s=60.0):
                path.write_text(str(int(path.read_text()) + 1))

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert path.read_text() == "60"
    with (
        FileLock(lock_beside(path), SECOND),
        pytest.raises(Exhausted, match="try again"),
        locked(path),
    ):
        pass


def test_the_lock_of_an_open_file_ends_with_its_last_copy_or_at_once_when_it_is_taken_off(
    tmp_path: Path,
) -> None:
    path = tmp_path / "segment"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    copy = os.dup(first)
    try:
        lock_open_file(first, SECOND)
        os.close(first)
        with pytest.raises(Conflict):
            lock_open_file(second, SECOND)
        unlock_open_file(copy)
        lock_open_file(second, SECOND)
    finally:
        os.close(copy)
        os.close(second)


def test_a_lock_that_cannot_be_made_says_why_and_a_link_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(CannotLock, match=r"cannot lock .*/gone/lock: No such file") as refused:
        FileLock(tmp_path / "gone" / "lock", SECOND)
    assert isinstance(refused.value, ConfigError)
    assert refused.value.number == 2
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(CannotLock):
        FileLock(tmp_path / "link", SECOND)
    assert not elsewhere.exists()
