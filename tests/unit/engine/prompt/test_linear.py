import pytest
import torch

from daemons.engine.prompt.linear import (
    ROW_BUCKETS,
    WIDE_ROWS,
    Linear,
    Multiply,
    bucket,
    choose_way,
)


@pytest.mark.parametrize("may_turn", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("num_in", "num_out"), [(576, 960), (1536, 576), (64, 160), (33, 17)])
@torch.inference_mode()
def test_rows_do_not_depend_on_their_number(
    num_in: int, num_out: int, dtype: torch.dtype, may_turn: bool
) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(num_out, num_in).to(dtype), torch.randn(num_out).to(dtype)
    linear = Linear(weight, bias, may_turn=may_turn)
    x = torch.randn(WIDE_ROWS, num_in).to(dtype)
    whole = linear(x)
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(whole.double(), exact, atol=0.5, rtol=0.02)
    for rows in (1, 2, 3, 4, 7, 8, 20, 33, 64, 100, 255, 256, 257):
        assert torch.equal(linear(x[:rows]), whole[:rows])
        assert torch.equal(linear(x[-rows:]), whole[-rows:])


@torch.inference_mode()
def test_few_reference_rows_split_a_large_batch() -> None:
    torch.manual_seed(0)
    linear = Linear(torch.randn(50, 40), reference_rows=4, max_rows=32)
    x = torch.randn(70, 40)
    assert linear.max_rows <= 32
    assert torch.equal(linear(x)[:1], linear(x[:1]))


def test_bucket_grows_past_the_table() -> None:
    assert [bucket(rows) for rows in (1, 4, 5, 65, 256, 257)] == [4, 4, 8, 96, 256, 512]


def blockwise(weight: torch.Tensor, _bias: torch.Tensor | None) -> Multiply:
    """As a kernel that sums many rows in two blocks of inputs, and few in one."""
    half = weight.shape[1] // 2 + 1

    def multiply(x: torch.Tensor) -> torch.Tensor:
        if len(x) <= 32:
            return x @ weight.t()
        return x[:, :half] @ weight[:, :half].t() + x[:, half:] @ weight[:, half:].t()

    return multiply


@torch.inference_mode()
def test_a_way_that_makes_decode_pad_gives_way_to_one_that_does_not() -> None:
    torch.manual_seed(0)
    weight = torch.randn(96, 128, dtype=torch.float64)  # plain sums of doubles: no surprises
    rows = (256, 256)

    def exact(weight: torch.Tensor, _bias: torch.Tensor | None) -> Multiply:
        return lambda x: (x[:, None] * weight).sum(dim=-1)

    assert choose_way((blockwise, exact), weight, None, rows) == (1, (*ROW_BUCKETS, WIDE_ROWS))
    number, good = choose_way((blockwise,), weight, None, rows)
    assert number == 0
    assert min(good) > 32
