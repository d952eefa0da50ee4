"""Advisory locks on files: who holds one keeps other processes out until it lets go or ends, however it ends.

The kernel's flock: it belongs to the open file, so two holders within one process exclude each other too. Waiting is
bounded, and whoever is refused is told who holds it and what to do.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemons.core.clock import monotonic
from daemons.core.errors import ConfigError, Exhausted, McError

_POLL_S: Final = 0.02
_MAX_COMMAND: Final = 80
SOMEBODY: Final = "another process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What somebody is told who comes second: `what` is held by whom, and the next step."""

    error: type[McError]
    what: str
    next_step: str

    def by(self, holder: str) -> McError:
        return self.error(f"{self.what} is held by {holder}; {self.next_step}")


class CannotLock(ConfigError):
    """The lock's file cannot be opened or locked: `number` says why, as an errno."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"cannot lock {path}: {error.strerror}; is its directory writable?")
        self.number = error.errno


class FileLock:
    """Held from its making until `release`; leaving a `with` is one."""

    def __init__(
        self,
        path: Path,
        refusal: Refusal,
        *,
        wait_s: float = 0.0,
        on_wait: Callable[[str], object] | None = None,
    ) -> None:
        """Makes the file, which stays: a lock on one that is unlinked would keep nobody out. `on_wait` is told the
        holder once, before the wait. Raises what `refusal` says, CannotLock.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self.descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise CannotLock(path, error) from None
        try:
            _take(self.descriptor, refusal, wait_s, on_wait)
        except OSError as error:
            self.release()
            raise CannotLock(path, error) from None
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_open_file(descriptor: int, refusal: Refusal) -> None:
    """Until the last copy of this descriptor closes, or `unlock_open_file`. Raises what `refusal` says, OSError."""
    _take(descriptor, refusal, 0.0, None)


def unlock_open_file(descriptor: int) -> None:
    """At once, whoever else has copies of the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_beside(path: Path) -> Path:
    """The lock of a file that is itself replaced as a whole."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def locked(path: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Around reading `path` and writing it again. Raises Exhausted when another holds it for `wait_s`, ConfigError if
    it cannot.
    """
    refusal = Refusal(error=Exhausted, what=str(path), next_step="try again when it has ended")
    with FileLock(lock_beside(path), refusal, wait_s=wait_s):
        yield


def holder_of(descriptor: int) -> str:
    """Its number and command where the kernel tells; it does not of a process outside this one's pid namespace, nor
    on every file system.
    """
    status = os.fstat(descriptor)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        # "1: FLOCK  ADVISORY  WRITE 1234 08:02:567 0 EOF"; one that waits has "->" behind its number.
        held = [words for line in lines if (words := line.split())[1] == "FLOCK"]
        pids = [int(words[4]) for words in held if words[5] == file]
    except (OSError, ValueError, IndexError):
        return SOMEBODY
    return _named(pids[0]) if pids and pids[0] > 0 else SOMEBODY


def _named(pid: int) -> str:
    if pid == os.getpid():
        return "this process"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return f"pid {pid}"
    shown = " ".join(command.decode(errors="replace").split())[:_MAX_COMMAND]
    return f"pid {pid} ({shown})" if shown.isprintable() and shown else f"pid {pid}"


def _take(
    descriptor: int, refusal: Refusal, wait_s: float, on_wait: Callable[[str], object] | None
) -> None:
    deadline_s = monotonic() + wait_s
    while not _is_taken(descriptor):
        if monotonic() >= deadline_s:
            raise refusal.by(holder_of(descriptor))
        if on_wait is not None:
            on_wait(holder_of(descriptor))
            on_wait = None
        time.sleep(_POLL_S)


def _is_taken(descriptor: int) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
