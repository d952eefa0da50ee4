"""What the papers print, to stand beside ours: FAST'25, figures 1, 5 and 9 (16 nodes of 8 x A800); arXiv, figure 12."""

from typing import Final

CONVERSATION_HIT_FRACTION: Final = {
    10_000: 0.0449,
    100_000: 0.0731,
    1_000_000: 0.0866,
    2_000_000: 0.1202,
    4_000_000: 0.2149,
    5_000_000: 0.2471,
    8_000_000: 0.2997,
    10_000_000: 0.3263,
    50_000_000: 0.3983,
    100_000_000: 0.4006,
}
"""Figure 9: by capacity in tokens, one cache for all."""

MEAN_TTFT_S: Final = {
    "kvcache-centric": 3.07,
    "cache-aware": 3.58,
    "least-loaded": 5.27,
    "random": 19.65,
}
"""Figure 5, by policy."""

EFFECTIVE_MOONCAKE: Final = {0.1: 0.966, 0.2: 1.0, 0.3: 1.0}
EFFECTIVE_VLLM: Final = {0.1: 0.161, 0.2: 0.388, 0.3: 0.628}
EFFECTIVE_VLLM_PREFIX: Final = {0.1: 0.151, 0.2: 0.344, 0.3: 0.560}
EFFECTIVE_VLLM_CHUNKED: Final = {0.1: 0.094, 0.2: 0.288, 0.3: 0.554}
"""Figure 1: share of requests with TTFT <= 30 s and TBT within so many seconds."""

LONG_CONTEXT_VLLM: Final = {16_384: 0.2, 32_768: 0.2, 65_536: 0.2, 131_072: 0.12}
LONG_CONTEXT_MOONCAKE: Final = {16_384: 1.25, 32_768: 0.6, 65_536: 0.3, 131_072: 0.14}
"""Figure 12 of the arXiv paper: highest tested rate within the objectives, by prompt tokens."""

OBSERVED_STEP_S: Final = 0.045
"""Decode step of figure 1's runs. Figure 14's 26 ms of one request alone cannot be it: there, half of Mooncake's own
requests have slow gaps of 75 ms and more, far beyond what batch and context add to 26 ms."""

SPLIT_EFFECTIVE: Final = {5: 0.777, 6: 0.972, 7: 0.991, 8: 0.990, 9: 0.992, 10: 0.984, 11: 0.861}
SPLIT_MEAN_TTFT_S: Final = {5: 5.74, 6: 1.71, 7: 1.30, 8: 1.19, 9: 1.12, 10: 1.11, 11: 1.14}
"""Figure 15: by prefill nodes of 16, TTFT <= 10 s and TBT <= 100 ms, on the synthetic trace."""

REJECTED: Final = {"none": 4183 / 23_000, "current": 3771 / 23_000, "predicted": 3589 / 23_000}
"""Table 3 of the arXiv paper: share of requests, by early rejection."""
