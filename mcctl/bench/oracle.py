"""Plain transformers in a process of its own, measured in turns with a cluster: only neighbours in time compare."""

import select
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Final

from daemons.core.errors import Unavailable

_LONGEST_S: Final = 900.0
"""Loading the model, or measuring once."""


class Oracle:
    """Each call measures once; `rates` are the medians. Close it when done. Raises Unavailable when it fails."""

    def __init__(self, model: Path, dtype: str, context: int) -> None:
        command = [
            sys.executable, "-m", "daemons.engine.oracle", str(model), "--dtype", dtype, "--context", str(context),
        ]  # fmt: skip
        self._rates: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        # A file, as nobody reads along: a full pipe would stop it.
        self._said = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  # closed with the process
        # It ends by itself when its stdin is closed, so also with us.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd="/",
        )
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Oracle":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def prefill(self, num_tokens: int) -> None:
        self._ask("prefill", num_tokens)

    def decode(self, batch: int) -> None:
        self._ask("decode", batch)

    def rates(self) -> dict[str, dict[str, float]]:
        """Tokens per second: {"prefill_tok_s": {prompt length: ...}, "decode_tok_s": {batch: ...}}."""
        return {
            f"{what}_tok_s": {number: median(rates) for number, rates in self._rates[what].items()}
            for what in ("prefill", "decode")
        }

    def _ask(self, what: str, number: int) -> None:
        assert self._process.stdin is not None, "it was started with a pipe"
        try:
            self._process.stdin.write(f"{what} {number}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reader below says why it died
        self._rates[what][str(number)].append(float(self._read()))

    def _read(self) -> str:
        assert self._process.stdout is not None, "it was started with a pipe"
        ready, _, _ = select.select([self._process.stdout], [], [], _LONGEST_S)
        if not ready:
            raise Unavailable(f"the oracle has not answered for {_LONGEST_S:.0f} s")
        line = self._process.stdout.readline()
        if line:
            return line
        self._said.seek(0)
        last = (self._said.read().strip().splitlines() or ["it said nothing"])[-1]
        raise Unavailable(
            f"the oracle failed: {last}; it needs pip install 'mooncake-mc[engine,test]'"
        )
