"""Matrix products whose rows never depend on how many rows share the call.

CPU kernels change their order of summation with the row count. So each shape is tried once, at
load, in the ways this machine offers, at a short list of row counts; the first way that serves
decode without padding is taken, and later runs only at the row counts whose results equal the
reference bit for bit. Measured with torch 2.13:
  - packed for oneDNN: float32 rounds alike from 2 rows on; decode gains 1.6x over F.linear. With
    AMX, bfloat16 above 32 rows sums in blocks of inputs, so decode would have to run 40 rows;
  - turned (weight @ x.T, the weight as it lies in the file): bfloat16 with AMX rounds alike at
    any row count, as fast as packed. Its result is a transposed view.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch.nn import functional

from daemons.engine.probe_record import recall

# Row counts a product may run at. Few, so that each can be tried; dense where decode lives.
ROW_BUCKETS: Final = (4, 8, 16, 24, 32, 40, 48, 64, 96, 128, 160, 192, 224, 256)
PACK_ROWS: Final = 8  # the row count that packing is tuned for
DECODE_ROWS: Final = 8  # a way good from here on suits decode
# A wide pass takes so many where they are equal too: a tenth less time a row.
WIDE_ROWS: Final = 512

Multiply = Callable[[torch.Tensor], torch.Tensor]
Shape = tuple[int, int, bool, torch.dtype, str, int, int, bool, bool, int]


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


def packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Multiply:
    reordered = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x.contiguous(), reordered, bias, "none", [], "")


def turned(weight: torch.Tensor, bias: torch.Tensor | None) -> Multiply:
    if bias is None:
        return lambda x: torch.mm(weight, x.t()).t()
    column = bias[:, None]
    return lambda x: torch.addmm(column, weight, x.t()).t()


def plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Multiply:
    return lambda x: functional.linear(x, weight, bias)


Way = Callable[[torch.Tensor, torch.Tensor | None], Multiply]
_choices: dict[Shape, tuple[Way, tuple[int, ...]]] = {}


def ways(weight: torch.Tensor, *, may_turn: bool, is_kept: bool) -> tuple[Way, ...]:
    """What may multiply by `weight` here, the preferred one first."""
    if weight.device.type != "cpu":
        return (plain,)
    best = packed if can_pack(weight.dtype) else plain
    if is_kept and weight.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        return (turned, best)  # as fast there, and no second copy
    return (best, turned) if may_turn else (best,)


class Linear:
    """`x @ weight.T + bias` for x of [rows, in]; equal rows give equal results in any company.

    With `may_turn` the result may be a transposed view.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        reference_rows: int = ROW_BUCKETS[-1],
        max_rows: int = ROW_BUCKETS[-1],
        may_turn: bool = False,
        is_kept: bool = False,
    ) -> None:
        """Results are those at `reference_rows`; more than `max_rows` run piece by piece, but for WIDE_ROWS.

        `is_kept`: the weight stays in memory whatever we make of it; implies `may_turn`.
        """
        num_out, num_in = weight.shape
        shape = (
            num_out,
            num_in,
            bias is not None,
            weight.dtype,
            weight.device.type,
            reference_rows,
            max_rows,
            may_turn,
            is_kept,
            torch.get_num_threads(),
        )
        if shape not in _choices:
            candidates = ways(weight, may_turn=may_turn or is_kept, is_kept=is_kept)
            number, tried = recall(
                f"linear {shape}",
                tuple[int, tuple[int, ...]],
                lambda: choose_way(candidates, weight, bias, (reference_rows, max_rows)),
            )
            _choices[shape] = candidates[number], tried
        way, good = _choices[shape]
        self._multiply = way(weight, bias)
        self._padded: dict[int, torch.Tensor] = {}
        self.takes_wide = good[-1] == WIDE_ROWS
        padded = good[:-1] if self.takes_wide else good
        self.max_rows = padded[-1]
        self._rows_to_run = [0] + [
            next(rows for rows in padded if rows >= wanted)
            for wanted in range(1, self.max_rows + 1)
        ]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        if num_rows == WIDE_ROWS and self.takes_wide:
            return self._multiply(x)
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


def choose_way(
    candidates: tuple[Way, ...],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    rows_range: tuple[int, int],
) -> tuple[int, tuple[int, ...]]:
    """The number of the first way good from few rows on, else of the first one; and its good row counts."""
    reference_rows, max_rows = rows_range
    buckets = [rows for rows in ROW_BUCKETS if rows <= max_rows]
    if max_rows == ROW_BUCKETS[-1]:
        buckets.append(WIDE_ROWS)
    probe_x, probe_weight = cancelling_probe(weight, buckets[-1])
    # A bias may choose the kernel, but a value in it would drown the rounding.
    no_bias = None if bias is None else torch.zeros_like(bias)
    tried = []
    for number, way in enumerate(candidates):
        multiply = way(probe_weight, no_bias)
        expected = torch.cat([multiply(piece) for piece in pieces(probe_x, reference_rows)])
        good = tuple(
            rows for rows in buckets if torch.equal(multiply(probe_x[:rows]), expected[:rows])
        )
        if set(good) >= {rows for rows in ROW_BUCKETS if DECODE_ROWS <= rows <= max_rows}:
            return number, good
        tried.append((number, good))
    return tried[0]


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
