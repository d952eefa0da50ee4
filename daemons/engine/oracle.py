"""How fast plain transformers is here: `python -m daemons.engine.oracle MODEL`, asked line by line.

`prefill TOKENS` and `decode BATCH` on stdin are measured once each; tokens per second come back. The yardstick of
`mcctl bench serve --oracle`; nothing that serves imports it. Same dtype, one thread, greedy.
"""

import argparse
import inspect
import sys
import time
from typing import Any, cast

import torch

DECODE_STEPS = 24


class Oracle:
    """A causal model with its own cache."""

    def __init__(self, path: str, dtype: str) -> None:
        # Imported here: the engine package must import without transformers.
        from transformers import AutoModelForCausalLM

        loaded = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        self.model = cast(Any, loaded)
        self.model.eval()
        parameters = inspect.signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    def prefill_s(self, num_tokens: int) -> float:
        """One forward pass over a prompt, logits of its last row."""
        ids = self._ids(1, num_tokens)
        started_s = time.perf_counter()
        self._forward(ids, None)
        return time.perf_counter() - started_s

    def decode_tok_s(self, batch: int, context: int) -> float:
        """Tokens per second of all sequences; the first step is not counted."""
        out = self._forward(self._ids(batch, context), None)
        started_s = 0.0
        for step in range(DECODE_STEPS + 1):
            if step == 1:
                started_s = time.perf_counter()
            last = out.logits[:, -1].argmax(-1, keepdim=True)
            out = self._forward(last, getattr(out, self._cache_name))
        return batch * DECODE_STEPS / (time.perf_counter() - started_s)

    def _forward(self, ids: torch.Tensor, cache: Any) -> Any:
        with torch.inference_mode():
            return self.model(
                input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_name: cache}
            )

    def _ids(self, batch: int, length: int) -> torch.Tensor:
        return torch.randint(16, self.model.config.vocab_size, (batch, length))


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--context", type=int, default=512, help="of a decode batch")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    oracle = Oracle(arguments.model, arguments.dtype)
    oracle.prefill_s(128)  # what is made on first use
    _say("ready")
    for line in sys.stdin:
        what, number = line.split()
        if what == "prefill":
            rate = int(number) / oracle.prefill_s(int(number))
        else:
            rate = oracle.decode_tok_s(int(number), arguments.context)
        _say(str(rate))
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
