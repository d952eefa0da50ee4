"""The published engine beside ours: two processes of the Python that has it installed, measured over TCP.

It is told to bind loopback; what it listens on besides is its own matter, so run it where nobody else is.
"""

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from daemons.core.errors import ConfigError, Unavailable
from mcctl.bench import published_worker
from mcctl.bench.published_worker import Order

VARIANTS: Final = {
    "default": {},
    "tuned": {"MC_TCP_ENABLE_CONNECTION_POOL": "1", "MC_TCP_SLICE_SIZE": str(4 << 20)},
}
"""Environment of each: as it comes, and as it is fastest on one host."""

_ENVIRONMENT: Final = {"MC_TCP_BIND_ADDRESS": "127.0.0.1", "MC_LOG_LEVEL": "2"}
_END_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PublishedEngine:
    """One variant, ready to move bytes."""

    variant: str
    _asker: "_Process"
    _target: str
    _address: int

    def times(self, operation: str, size_bytes: int, blocks: int, seconds: float) -> list[float]:
        """Seconds of each transfer of a round."""
        order = Order(
            operation=operation,
            target=self._target,
            address=self._address,
            size_bytes=size_bytes,
            blocks=blocks,
            seconds=seconds,
        )
        self._asker.tell(json.dumps(order))
        answer: list[float] = json.loads(self._asker.hear())
        return answer


@contextlib.contextmanager
def published_engine(python: Path, variant: str, memory_bytes: int) -> Iterator[PublishedEngine]:
    """Raises ConfigError where this Python does not have it."""
    with _process(python, variant, memory_bytes, 1) as target:
        told = json.loads(target.hear())
        with _process(python, variant, memory_bytes, 2) as asker:
            asker.hear()
            yield PublishedEngine(variant, asker, told["target"], told["address"])


@dataclass(frozen=True, slots=True)
class _Process:
    python: Path
    process: subprocess.Popen[str]
    errors: IO[str]

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `hear` says why
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return line
        self.errors.seek(0)
        last = self.errors.read().strip().splitlines()[-1:] or ["it ended without a word"]
        if "ModuleNotFoundError" in last[0]:
            raise ConfigError(
                f"{self.python} has no published engine: pip install mooncake-transfer-engine-non-cuda "
                "into an environment of its own, and name its python"
            )
        raise Unavailable(f"the published engine failed: {last[0]}")


@contextlib.contextmanager
def _process(python: Path, variant: str, memory_bytes: int, value: int) -> Iterator[_Process]:
    environment = os.environ | _ENVIRONMENT | VARIANTS[variant]
    environment.pop("PYTHONPATH", None)
    command = [str(python), published_worker.__file__, str(memory_bytes), str(value)]
    with tempfile.TemporaryFile("w+") as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        except OSError as error:
            raise ConfigError(f"{python} cannot be run: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield _Process(python, process, errors)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
