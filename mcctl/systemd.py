"""The units of this host, by systemctl and journalctl: which there are, how they are, what they said."""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from daemons.core.errors import NotFound, Rejected, Unavailable
from daemons.protocol.base import MALFORMED

TARGET: Final = "mooncake.target"
_ASK_S: Final = 10.0
_JOB_S: Final = 300.0
"""Longer than any unit may take to start or stop."""
_NOT_LOADED: Final = 5
PRESERVES_FDS: Final = 254
"""The first version whose FileDescriptorStorePreserve= keeps an fd store over stop and start."""
_WITHOUT: Final = "`mcctl cluster up` keeps a cluster without units"
_PROPERTIES: Final = "Id,LoadState,ActiveState,SubState,StatusText,MainPID,NRestarts,MemoryCurrent,UnitFileState,Result"


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """One daemon as systemd sees it; fields are only ever added."""

    name: str
    """mc-cachenode@0, without .service."""
    state: str
    """active, inactive, failed, activating, deactivating, ..."""
    substate: str
    pid: int | None
    memory_bytes: int | None
    num_restarts: int
    """By systemd, since it was started by hand."""
    is_enabled: bool
    result: str
    """Why it ended, where it failed: exit-code, watchdog, timeout, ..."""
    status: str
    """What the daemon says of itself."""


class JournalLine(msgspec.Struct, frozen=True, kw_only=True):
    """`time_s` since 1970."""

    unit: str
    time_s: float
    line: str


def running_version() -> int | None:
    """Of the systemd that runs this host; None where none does."""
    try:
        said = _ask("systemctl", "show", "--property=Version")
    except Unavailable:
        return None
    number = re.match(r"Version=v?(\d+)", said)
    return int(number[1]) if number else None


def units() -> list[Unit]:
    """Those that are loaded or enabled, by name. Raises Unavailable where there is no systemd."""
    listed = _ask(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", "--full", "mc-*.service"
    )
    enabled = _ask("systemctl", "list-unit-files", "--no-legend", "--full", "mc-*.service")
    names = {line.split()[0] for text in (listed, enabled) for line in text.splitlines() if line}
    wanted = sorted(name for name in names if not name.endswith("@.service"))
    if not wanted:
        return []
    shown = _ask("systemctl", "show", f"--property={_PROPERTIES}", *wanted)
    return [unit for block in shown.split("\n\n") if (unit := _unit(block)) is not None]


def find_units(names: Sequence[str], known: Sequence[Unit]) -> list[str]:
    """Full names of those meant: cachenode@0, mc-cachenode@0.service, or cachenode for all instances of it.

    Raises NotFound for one that is not there; an instance that was never started may be named.
    """
    found: list[str] = []
    for name in names:
        plain = "mc-" + name.removeprefix("mc-").removesuffix(".service")
        instances = [unit.name for unit in known if unit.name.startswith(f"{plain}@")]
        if any(unit.name == plain for unit in known) or plain.partition("@")[2]:
            found.append(plain)
        elif instances:
            found += instances
        else:
            there = ", ".join(unit.name for unit in known) or "none"
            raise NotFound(f"no unit {plain} on this host; there are: {there}")
    return [f"{name}.service" for name in dict.fromkeys(found)]


def change(verb: str, names: Sequence[str]) -> None:
    """start, stop or restart, and wait for it. Raises Rejected, NotFound, Unavailable with what systemctl said."""
    done = _run(_JOB_S, "systemctl", verb, *names)
    if done.returncode == 0:
        return
    said = " ".join(done.stderr.split()) or f"it ended with status {done.returncode}"
    message = f"systemctl {verb} {' '.join(names)}: {said}"
    if "denied" in said or "authentication required" in said.lower():
        raise Rejected(f"{message}; run it as root")
    if done.returncode == _NOT_LOADED or "not found" in said:
        raise NotFound(message)
    raise Unavailable(f"{message}; `mcctl logs` shows what the daemon said")


def journal(names: Sequence[str], num_lines: int) -> list[JournalLine]:
    """The last lines of these units together, in order."""
    words = ["journalctl", "--output=json", "--no-pager", f"--lines={num_lines}"]
    text = _ask(*words, *(f"--unit={name}" for name in names))
    return [line for raw in text.splitlines() if (line := _journal_line(raw)) is not None]


def follow_journal(
    names: Sequence[str], num_lines: int, ends_s: float | None
) -> Iterator[JournalLine | None]:
    """The last lines and what comes after; None whenever nothing came for a moment, until `ends_s`."""
    words = ["journalctl", "--output=json", "--follow", f"--lines={num_lines}"]
    command = [_tool(words[0]), *words[1:], *(f"--unit={name}" for name in names)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        timer = None if ends_s is None else _kill_at(process, ends_s)
        try:
            for raw in process.stdout:
                yield _journal_line(raw)
        finally:
            process.kill()
            if timer is not None:
                timer.cancel()


def _kill_at(process: "subprocess.Popen[str]", ends_s: float) -> threading.Timer:
    timer = threading.Timer(max(0.0, ends_s - time.monotonic()), process.kill)
    timer.daemon = True
    timer.start()
    return timer


def _unit(block: str) -> Unit | None:
    values = dict(line.partition("=")[::2] for line in block.splitlines())
    if not values.get("Id") or values.get("LoadState") == "not-found":
        return None
    memory = values.get("MemoryCurrent", "")
    return Unit(
        name=values["Id"].removesuffix(".service"),
        state=values.get("ActiveState", "?"),
        substate=values.get("SubState", "?"),
        pid=int(values.get("MainPID") or 0) or None,
        memory_bytes=int(memory) if memory.isdecimal() and int(memory) < 1 << 63 else None,
        num_restarts=int(values.get("NRestarts") or 0),
        is_enabled=values.get("UnitFileState") == "enabled",
        result=values.get("Result", ""),
        status=values.get("StatusText", ""),
    )


def _journal_line(raw: str) -> JournalLine | None:
    try:
        fields = msgspec.json.decode(raw, type=dict[str, object])
    except MALFORMED:
        return None
    message = fields.get("MESSAGE")
    if isinstance(message, list):  # bytes that are no UTF-8
        with suppress(TypeError, ValueError):
            message = bytes(message).decode("utf-8", "replace")
    # What systemd says of a unit has that as UNIT, and comes from a unit of its own.
    unit = str(fields.get("UNIT") or fields.get("_SYSTEMD_UNIT") or "?")
    stamp = str(fields.get("__REALTIME_TIMESTAMP") or "0")
    return JournalLine(
        unit=unit.removesuffix(".service"),
        time_s=int(stamp) / 1e6 if stamp.isdecimal() else 0.0,
        line=str(message if message is not None else ""),
    )


def _ask(*words: str) -> str:
    done = _run(_ASK_S, *words)
    if "not been booted with systemd" in done.stderr:
        raise Unavailable(f"systemd does not run this host; {_WITHOUT}")
    if done.returncode and not done.stdout:
        said = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise Unavailable(f"{words[0]} {words[1]}: {said}")
    return done.stdout


def _run(timeout_s: float, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [_tool(words[0]), *words[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{words[0]} {words[1]} took longer than {timeout_s:g} s") from None


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"no {name} on this host; {_WITHOUT}")
    return found
