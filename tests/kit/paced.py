"""Engines of stated times, where no test is about the model: they load no torch and read no weights."""

from pathlib import Path

_PROFILE = """
[prefill]
fixed_s = {fixed_s}
token_s = {token_s}
token_context_s = {token_context_s}
[decode]
step_s = {step_s}
context_token_s = {context_token_s}
sequence_s = {sequence_s}
[kv]
bytes_per_token = 768
num_layers = 3
device_tokens = 60000
dram_tokens = 60000
[bandwidth]
load = 20e9
network = 10e9
"""
_FAST = {
    "fixed_s": 0.001,
    "token_s": 1e-6,
    "token_context_s": 1e-12,
    "step_s": 0.001,
    "context_token_s": 1e-9,
    "sequence_s": 1e-4,
}


def write_profile(path: Path, **times_s: float) -> Path:
    """For `--paced`, with KV of the tiny model's size; times that are not given are such that nobody waits for them."""
    path.write_text(_PROFILE.format(**_FAST | times_s))
    return path
