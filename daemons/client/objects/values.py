"""Values as callers have them, and as host memory: arrays, tensors on any device, plain bytes.

Knows torch only by what it is given, and never imports it.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from daemons.client.objects.format import ValueType
from daemons.core.errors import Rejected, TransferError
from daemons.transfer import ByteArray, as_bytes


def on_host(value: Any) -> Any:
    """A tensor on a device is copied to the host first; what is not contiguous is put in order."""
    if hasattr(value, "data_ptr"):
        value = value.detach().cpu().contiguous()
    return value


def targets_of(
    wanted: Sequence[tuple[bytes | str, Any]],
) -> tuple[list[ByteArray], list[Callable[[], object]]]:
    """Host memory to read into, and what brings it to those targets that are elsewhere. Raises TransferError.

    One name may be read into one target twice; what else overlaps would be torn, and is refused.
    """
    arrays: list[ByteArray] = []
    copies: list[Callable[[], object]] = []
    for _, target in wanted:
        if hasattr(target, "data_ptr") and str(target.device) != "cpu":
            staged = target.new_empty(target.shape, device="cpu")
            copies.append(functools.partial(target.copy_, staged))
            arrays.append(as_bytes(staged))
        else:
            arrays.append(as_bytes(target))
            if not arrays[-1].flags.writeable:
                raise TransferError("the memory to read into is read-only")
    spans = [(array.__array_interface__["data"][0], array.nbytes) for array in arrays]
    order = sorted(range(len(spans)), key=spans.__getitem__)
    for before, after in itertools.pairwise(order):
        (start, size), (next_start, next_size) = spans[before], spans[after]
        is_again = spans[before] == spans[after] and wanted[before][0] == wanted[after][0]
        if next_size and next_start < start + size and not is_again:
            raise Rejected(f"the targets of values {before} and {after} of this call overlap")
    return arrays, copies


def as_array(value: ByteArray, value_type: ValueType) -> Any:
    """These bytes as what was put. Raises Rejected."""
    if value_type.kind == "numpy":
        value = value if value.flags.writeable else value.copy()
        return value.view(np.dtype(value_type.dtype)).reshape(value_type.shape)
    if value_type.kind == "bytes":
        raise Rejected("it was put as plain bytes; use get")
    torch = sys.modules.get("torch")
    if torch is None:
        raise Rejected("it is a torch tensor, and this process has not imported torch")
    tensor = torch.empty(value_type.shape, dtype=getattr(torch, value_type.dtype))
    np.copyto(as_bytes(tensor), value)
    return tensor
