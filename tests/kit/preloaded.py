"""Daemons and mcctl as processes that need not import first: forked from one that has, instead of a new Python each.

What a test gets is what `subprocess.Popen` gives: a process of its own, a child of the test's, with its own memory,
signals, environment and exit status. Only the half second of imports is gone, several on a machine on which touching
memory is slow; thousands of processes start. `PRELOADED=0` in the environment starts Python each time.

`python -m kit.preloaded FD ENGINE PAD` serves one test process: a JSON object and three open files in, a pid out. The
words over PAD, as others see them, are those of the process that is asked for.
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Final

_TESTS: Final = Path(__file__).resolve().parent.parent
_PROGRAMS: Final = ("mc_master", "mc_cachenode", "mc_gateway", "mc_prefill", "mc_decode")
_MODULES: Final = ("mcctl", *(f"daemons.{name}" for name in _PROGRAMS))
_IMPORTED: Final = ("mcctl.main", "daemons.engine.paced", *(f"daemons.{n}.app" for n in _PROGRAMS))
_ENGINE: Final = "daemons.engine.torch_engine"
_NEED_ENGINE: Final = ("daemons.mc_prefill", "daemons.mc_decode")
_TIED: Final = "mcctl.cluster.die_with_parent"
_READ_AT_START: Final = ("OMP_", "GOMP_", "MKL_", "OPENBLAS_", "GLIBC_", "MALLOC_", "PYTHON", "LD_")
"""Variables that libraries or Python look at when they are loaded: others may come later."""
_MAX_MESSAGE: Final = 1 << 17
_MAX_COMMAND: Final = 1 << 12
_IMPORTS_S: Final = 120.0
_EXIT_NOT_FLUSHED: Final = 120
"""Python's own."""
_ARG_START: Final = 45
"""Of the fields of /proc/PID/stat after the command's name; the next one is its end: proc_pid_stat(5)."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PLAIN: Final[dict[str, Any]] = {
    "executable": None,
    "preexec_fn": None,
    "close_fds": True,
    "pass_fds": (),
    "shell": False,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "process_group": -1,
}
"""Arguments of a start that is no different from most."""


def install() -> None:
    """From now on this process starts its daemons so."""
    if os.environ.get("PRELOADED") != "0":
        subprocess.Popen = _Popen  # type: ignore[misc]  # what all code here starts processes with


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    """As its base; of the commands that are known the process is forked, not executed."""

    def _execute_child(self, *args: Any) -> None:
        start = super()._execute_child  # type: ignore[misc]  # there is no other place between pipes and process
        how = inspect.signature(start).bind(*args).arguments
        job = _job_of(how)
        env = os.environ if how["env"] is None else how["env"]
        if job is None or env.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
            start(*args)
            return
        given = (how["p2cread"], how["c2pwrite"], how["errwrite"])
        fds = [own if fd == -1 else fd for own, fd in enumerate(given)]
        self.pid = _server_for(job["module"], env).start(job | {"env": dict(env)}, fds)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(how[each] for each in ends))  # type: ignore[attr-defined]  # as the base does


def _job_of(how: dict[str, Any]) -> dict[str, Any] | None:
    """What the server is asked to run; None for another command, or one that is to start in a special way."""
    command = how["args"]
    if isinstance(command, str | bytes | os.PathLike):
        return None
    if any(how.get(name, usual) != usual for name, usual in _PLAIN.items()):
        return None
    words = [os.fspath(word) for word in command]
    parent = 0
    if words[:3] == [sys.executable, "-m", _TIED]:
        parent, words = int(words[3]), words[4:]
        if parent != os.getpid():
            return None
    if words[:2] != [sys.executable, "-m"] or len(words) < 3 or words[2] not in _MODULES:
        return None
    return {
        "module": words[2],
        "arguments": words[3:],
        "cwd": os.fspath(how["cwd"] or Path.cwd()),
        "new_session": bool(how["start_new_session"]),
        "parent": parent,
    }


# --- the test's side ------------------------------------------------------------------------------------------------

_servers: dict[tuple[object, ...], "_Server"] = {}
_lock: Final = threading.Lock()


def _server_for(module: str, env: Any) -> "_Server":
    read = tuple(sorted((k, v) for k, v in env.items() if k.startswith(_READ_AT_START)))
    key = (module in _NEED_ENGINE, read)
    with _lock:
        if key not in _servers:
            _servers[key] = _Server(dict(read), has_engine=key[0])
        return _servers[key]


class _Server:
    """Ends with this process, however that ends."""

    def __init__(self, env: dict[str, str], *, has_engine: bool) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([str(_TESTS), *filter(None, [env.get("PYTHONPATH")])])
        words = [
            "-m",
            "kit.preloaded",
            str(other.fileno()),
            str(int(has_engine)),
            "-" * _MAX_COMMAND,
        ]
        others = {k: v for k, v in os.environ.items() if not k.startswith(_READ_AT_START)}
        self._process = _executed(
            [sys.executable, *words],
            pass_fds=[other.fileno()],
            env=others | env | {"PYTHONPATH": path},
            cwd="/",
            stdin=subprocess.DEVNULL,
        )
        other.close()
        self._socket.settimeout(_IMPORTS_S)
        assert self._socket.recv(16), "the imports failed"
        atexit.register(self._end)

    def start(self, job: dict[str, Any], fds: list[int]) -> int:
        """Its pid, a child of this process."""
        with _lock:
            # Adopted from the process between, which has ended when the answer is here; others' orphans are not ours.
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [json.dumps(job).encode()], fds)
                return int(self._socket.recv(16))
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait(_IMPORTS_S)


_executed: Final = subprocess.Popen


def _prctl(option: int, value: int) -> None:
    assert ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0


# --- the server's side ----------------------------------------------------------------------------------------------


def _serve(asked: socket.socket) -> dict[str, Any] | None:
    """None at the end; in each forked process its job."""
    while True:
        message, fds, _, _ = socket.recv_fds(asked, _MAX_MESSAGE, 3)
        if not message:
            return None
        told_read, told_write = os.pipe()
        adopted_read, adopted_write = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:
                os.write(told_write, str(pid).encode())
                os._exit(0)
            os.close(adopted_write)
            os.read(adopted_read, 1)
            for fd in (told_read, told_write, adopted_read):
                os.close(fd)
            asked.close()
            job: dict[str, Any] = json.loads(message)
            _become(job, fds)
            return job
        os.waitpid(between, 0)
        asked.send(os.read(told_read, 16))
        for fd in (told_read, told_write, adopted_read, adopted_write, *fds):
            os.close(fd)


def _become(job: dict[str, Any], fds: list[int]) -> None:
    """All that a new process has of its own."""
    for own, fd in enumerate(fds):
        os.dup2(fd, own)
    for fd in fds:
        os.close(fd)
    if job["new_session"]:
        os.setsid()
    if job["parent"]:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != job["parent"]:
            os._exit(1)
    _show_command([sys.executable, "-m", job["module"], *job["arguments"]])
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115


def _show_command(words: list[str]) -> None:
    """As what others see of this process, over the words that the server was started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
    shown = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))


def main() -> None:
    fd, has_engine = map(int, sys.argv[1:3])
    for name in (*_IMPORTED, *([_ENGINE] if has_engine else [])):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    asked = socket.socket(fileno=fd)
    asked.send(b"ready")
    job = _serve(asked)
    if job is None:
        return
    sys.argv = [job["module"], *job["arguments"]]
    os._exit(_run(job["module"]))


def _run(module: str) -> int:
    """Its exit status, once its threads and what it left for its end are done. Nothing is torn down: that would look at
    all memory, which is the server's until it is written to.
    """
    status: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exiting:
        status = exiting.code
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception:  # noqa: BLE001 - as Python says what nobody caught
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
    threading._shutdown()  # type: ignore[attr-defined]  # as Python does at its end, the next one too
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = _EXIT_NOT_FLUSHED
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    main()
