"""Matrix products whose rows never depend on how many rows share the call.

CPU kernels change their order of summation with the row count: measured with torch 2.13 on
AVX-512 and AMX, bfloat16 products of a small model round differently below 37 rows, MKL's float32
ones below 16. So every shape is tried once, at load, at a short list of row counts, and later
runs only at those whose results equal the reference bit for bit.

Weights are packed for oneDNN where this build offers it: its float32 products round alike from
2 rows on, and decode gains about 1.6x over F.linear in either dtype.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch.nn import functional

# Row counts a product may run at. Few, so that each can be tried; dense where decode lives.
ROW_BUCKETS: Final = (4, 8, 16, 24, 32, 40, 48, 64, 96, 128, 160, 192, 224, 256)
PACK_ROWS: Final = 8  # the row count that packing is tuned for

Multiply = Callable[[torch.Tensor], torch.Tensor]
Shape = tuple[int, int, bool, torch.dtype, str, int, int, int]
_good_rows_by_shape: dict[Shape, tuple[int, ...]] = {}


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch build and CPU have oneDNN's packed products."""
    is_available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's
    if not is_available or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def bucket(num_rows: int) -> int:
    """The smallest tried row count, or multiple of the largest, that holds `num_rows`."""
    largest = ROW_BUCKETS[-1]
    return next(
        (rows for rows in ROW_BUCKETS if rows >= num_rows), -(-num_rows // largest) * largest
    )


def pieces(x: torch.Tensor, num_rows: int) -> list[torch.Tensor]:
    return [x[first : first + num_rows] for first in range(0, len(x), num_rows)]


class Linear:
    """`x @ weight.T + bias` for x of [rows, in]; equal rows give equal results in any company."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        reference_rows: int = ROW_BUCKETS[-1],
        max_rows: int = ROW_BUCKETS[-1],
    ) -> None:
        """Results are those at `reference_rows`; more than `max_rows` run piece by piece."""
        self.bias = bias
        self._multiply = self._prepare(weight, bias)
        self._padded: dict[int, torch.Tensor] = {}
        num_out, num_in = weight.shape
        shape = (
            num_out,
            num_in,
            bias is not None,
            weight.dtype,
            weight.device.type,
            reference_rows,
            max_rows,
            torch.get_num_threads(),
        )
        if shape not in _good_rows_by_shape:
            _good_rows_by_shape[shape] = self._try_rows(weight, reference_rows, max_rows)
        good = _good_rows_by_shape[shape]
        self.max_rows = good[-1]
        self._rows_to_run = [0] + [
            next(rows for rows in good if rows >= wanted) for wanted in range(1, good[-1] + 1)
        ]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        if num_rows > self.max_rows:
            return torch.cat([self(piece) for piece in pieces(x, self.max_rows)])
        rows = self._rows_to_run[num_rows]
        if rows == num_rows:
            return self._multiply(x)
        if rows not in self._padded:
            self._padded[rows] = x.new_zeros(rows, x.shape[1])
        # Earlier calls' rows stay behind ours: no row sees another.
        padded = self._padded[rows]
        padded[:num_rows] = x
        return self._multiply(padded)[:num_rows]

    @staticmethod
    def _prepare(weight: torch.Tensor, bias: torch.Tensor | None) -> Multiply:
        if weight.device.type != "cpu" or not can_pack(weight.dtype):
            return lambda x: functional.linear(x, weight, bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        multiply = torch.ops.mkldnn._linear_pointwise.default
        return lambda x: multiply(x, packed, bias, "none", [], "")

    def _try_rows(
        self, weight: torch.Tensor, reference_rows: int, max_rows: int
    ) -> tuple[int, ...]:
        probe_x, probe_weight = cancelling_probe(weight, max_rows)
        # A bias may choose the kernel, but a value in it would drown the rounding.
        no_bias = None if self.bias is None else torch.zeros_like(self.bias)
        multiply = Linear._prepare(probe_weight, no_bias)
        expected = torch.cat([multiply(piece) for piece in pieces(probe_x, reference_rows)])
        good = [
            rows
            for rows in ROW_BUCKETS
            if rows <= max_rows and torch.equal(multiply(probe_x[:rows]), expected[:rows])
        ]
        return tuple(good)


def cancelling_probe(weight: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and a weight of the same shape whose exact product is zero.

    What a kernel returns is then nothing but its rounding, so any other order of summation shows
    in nearly every element; on ordinary data bf16 output hides it in all but a few.
    """
    generator = torch.Generator().manual_seed(0)
    half = weight.shape[1] // 2
    order = torch.randperm(half, generator=generator)
    x = torch.zeros(num_rows, weight.shape[1])
    x[:, :half] = torch.randn(num_rows, half, generator=generator)
    x = x.to(weight.dtype)
    x[:, half : 2 * half] = -x[:, order]
    probe = weight.clone()
    probe[:, half : 2 * half] = weight[:, order.to(weight.device)]
    return x.to(weight.device), probe
