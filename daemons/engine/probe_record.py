"""What was tried of this machine's kernels at an earlier start, so that a restart need not try it again.

A record counts only where everything is as it was that may decide how results round: library, processor, environment,
this code, model, dtype and threads. One that is torn or foreign is as none. The canary runs whatever it says.
"""

import contextlib
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import torch

from daemons.engine.geometry import CHUNK_TOKENS

log = logging.getLogger(__name__)

FILE_NAME: Final = "tried-kernels.json"
_MAX_BYTES: Final = 1 << 20
_ENVIRONMENT: Final = (
    "ATEN_",
    "BLIS_",
    "CUBLAS_",
    "CUDA_",
    "DNNL_",
    "GLIBC_TUNABLES",
    "GOMP_",
    "KMP_",
    "LD_",
    "MKL_",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "TORCH",
)
_CPU_FIELDS: Final = ("vendor_id", "model name", "cpu family", "model", "stepping", "flags")
_T = TypeVar("_T")


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    """`digest` is over the key and the encoded findings: nothing that was changed by hand or cut short passes."""

    key: str
    digest: str
    found: dict[str, msgspec.Raw]


class ProbeRecord:
    """One file of one instance. Nothing here ever raises for what the file holds, or for a disk that is full."""

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._found = _read(path, key)
        self._is_changed = False

    @property
    def num_found(self) -> int:
        return len(self._found)

    def recall(self, what: str, kind: Any, make: Callable[[], _T]) -> _T:
        """What `make` gave when it was asked for `what` before, else what it gives now, which is kept."""
        kept = self._found.get(what)
        if kept is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                value: _T = msgspec.json.decode(kept, type=kind)
                return value
        made = make()
        self.keep(what, made)
        return made

    def find(self, what: str) -> str | None:
        """A text that was kept."""
        with contextlib.suppress(KeyError, msgspec.MsgspecError):
            return msgspec.json.decode(self._found[what], type=str)
        return None

    def keep(self, what: str, value: object) -> None:
        self._found[what] = msgspec.Raw(msgspec.json.encode(value))
        self._is_changed = True

    def save(self) -> None:
        """Whole or not at all, where anything is new."""
        if not self._is_changed:
            return
        kept = _Kept(key=self._key, digest=_digest(self._key, self._found), found=self._found)
        fresh = self._path.with_name(f"{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.unlink(missing_ok=True)  # whatever it is: a pipe would be waited for
            with fresh.open("xb") as file:
                file.write(msgspec.json.encode(kept))
            fresh.replace(self._path)
        except OSError as error:
            log.info("tried kernels are not kept path=%s why=%s", self._path, error.strerror)
            with contextlib.suppress(OSError):
                fresh.unlink()


_used: ContextVar[ProbeRecord | None] = ContextVar("probe_record", default=None)


@contextlib.contextmanager
def using(record: ProbeRecord | None) -> Iterator[None]:
    """What is recalled meanwhile on this thread is recalled from `record`; None: everything is tried."""
    token = _used.set(record)
    try:
        yield
    finally:
        _used.reset(token)


def recall(what: str, kind: Any, make: Callable[[], _T]) -> _T:
    """`make()`, or what it gave at an earlier start that nothing tells from this one. `kind` is what JSON becomes.

    `what` names all that the outcome depends on beyond machine, code and model.
    """
    record = _used.get()
    return make() if record is None else record.recall(what, kind, make)


def key_of(model: bytes, dtype: str, device: str, threads: int) -> str:
    """Equal for two starts only if the same kernels run on the same data."""
    digest = hashlib.blake2b(digest_size=16, person=b"mc-probes")
    for part in (
        model,
        f"{dtype} {device} {threads} {CHUNK_TOKENS}",
        f"{torch.__version__} {torch.version.git_version} {torch.backends.cpu.get_cpu_capability()}",
        torch.__config__.show(),
        torch.__config__.parallel_info(),
        *_processor(),
        *_accelerator(device),
        *sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(_ENVIRONMENT)),
        *_code(),
    ):
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _accelerator(device: str) -> Iterator[str]:
    if device != "cpu":
        yield torch.cuda.get_device_name(device)
        yield _text(Path("/proc/driver/nvidia/version"))


def _processor() -> Iterator[str]:
    """Kernels are chosen by what the CPU can do, and cut their work by caches and cores."""
    first = _text(Path("/proc/cpuinfo")).split("\n\n", 1)[0]
    for line in first.splitlines():
        name = line.split(":", 1)[0].strip()
        if name in _CPU_FIELDS:
            yield line
    yield f"{os.cpu_count()} {len(os.sched_getaffinity(0))}"
    for path in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")):
        yield _text(path)


def _code() -> Iterator[bytes]:
    """The engine's own files, by name and content."""
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        yield str(path.relative_to(root)).encode()
        yield path.read_bytes()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _bytes(path: Path) -> bytes:
    """Empty for what is no file, or too long for a record. Raises OSError; never waits for what it is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        is_one = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
        return os.read(descriptor, _MAX_BYTES) if is_one else b""
    finally:
        os.close(descriptor)


def _digest(key: str, found: dict[str, msgspec.Raw]) -> str:
    digest = hashlib.blake2b(digest_size=16, person=b"mc-probes-file")
    for part in (key, *(text for item in sorted(found.items()) for text in item)):
        data = part.encode() if isinstance(part, str) else bytes(part)
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _read(path: Path, key: str) -> dict[str, msgspec.Raw]:
    """Empty for everything but a whole record of the same key."""
    try:
        kept = msgspec.json.decode(_bytes(path), type=_Kept)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    is_ours = kept.key == key and kept.digest == _digest(kept.key, kept.found)
    return (
        {what: msgspec.Raw(bytes(value)) for what, value in kept.found.items()} if is_ours else {}
    )
