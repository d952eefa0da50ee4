"""Plain transformers in a process of its own, measured in turns with a cluster: only neighbours in time compare.

A machine's other work slows both of a pair, so what is said of the two is the median over pairs of their ratio.
"""

import select
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Final, Literal

from daemons.core.errors import Unavailable

_LONGEST_S: Final = 900.0
"""Loading the model, or measuring once."""

Measure = Literal["prefill", "decode"]


class Oracle:
    """Each `measure` measures once; of what is kept, `rates` tells medians. Raises Unavailable when it fails."""

    def __init__(self, model: Path, dtype: str, context: int) -> None:
        command = [
            sys.executable, "-m", "daemons.engine.oracle", str(model), "--dtype", dtype, "--context", str(context),
        ]  # fmt: skip
        # What, then of what length or batch: pairs of its rate and ours.
        self._pairs: dict[Measure, defaultdict[str, list[tuple[float, float]]]] = {
            "prefill": defaultdict(list),
            "decode": defaultdict(list),
        }
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

    def measure(self, what: Measure, number: int) -> float:
        """Tokens per second of a prompt of so many tokens, or of decode at a batch of so many sequences."""
        assert self._process.stdin is not None, "it was started with a pipe"
        try:
            self._process.stdin.write(f"{what} {number}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reader below says why it died
        return float(self._read())

    def keep(self, what: Measure, name: str, its_rate: float, our_rate: float) -> None:
        """A pair of neighbours in time, among those of the same name."""
        self._pairs[what][name].append((its_rate, our_rate))

    def rates(self) -> dict[str, dict[str, float]]:
        """`prefill_tok_s` and `decode_tok_s`: its medians by name; `prefill_ratio` and `decode_ratio`: ours to its."""
        rates = {}
        for what, by_name in self._pairs.items():
            rates[f"{what}_tok_s"] = {
                name: median(its for its, _ in pairs) for name, pairs in by_name.items()
            }
            rates[f"{what}_ratio"] = {
                name: median(ours / its for its, ours in pairs) for name, pairs in by_name.items()
            }
        return rates

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
