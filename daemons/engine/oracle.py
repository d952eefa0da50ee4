"""How fast plain transformers is here: `python -m daemons.engine.oracle MODEL`, JSON on stdout.

The yardstick of `mcctl bench serve --oracle`; nothing that serves imports it. Same dtype, one thread, greedy.
"""

import argparse
import inspect
import json
import sys
import time
from statistics import median
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
    parser.add_argument("--prefill", type=int, nargs="*", default=[])
    parser.add_argument("--batch", type=int, nargs="*", default=[])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    oracle = Oracle(arguments.model, arguments.dtype)
    oracle.prefill_s(128)  # what is made on first use
    runs = range(arguments.repeats)
    prefill = {str(n): n / median(oracle.prefill_s(n) for _ in runs) for n in arguments.prefill}
    decode = {
        str(b): median(oracle.decode_tok_s(b, arguments.context) for _ in runs)
        for b in arguments.batch
    }
    sys.stdout.write(json.dumps({"prefill_tok_s": prefill, "decode_tok_s": decode}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
