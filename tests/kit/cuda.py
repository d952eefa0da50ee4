"""CUDA memory on machines without a GPU: a driver library of our own (cuda_driver.c), and what torch makes of it.

The library is compiled with the machine's cc. The CPU cannot touch its devices' memory by the addresses it gives out.
"""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from daemons.transfer import cuda

SOURCE = Path(__file__).with_name("cuda_driver.c")


@functools.cache
def _build() -> tuple[str, tempfile.TemporaryDirectory[str]]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    directory = tempfile.TemporaryDirectory(prefix="mc-cuda-")
    path = str(Path(directory.name) / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, SOURCE], check=True, timeout=60)
    return path, directory


@contextmanager
def driver() -> Iterator[ctypes.CDLL]:
    """`load_driver` finds it as long as the block runs; skips the test where there is no C compiler."""
    path, _ = _build()
    library = ctypes.CDLL(path)
    library.test_allocate.restype = ctypes.c_uint64
    library.test_allocate.argtypes = (ctypes.c_size_t,)
    library.test_reset()
    cuda.load_driver.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "LIBRARY", path)
        cuda.load_driver()
        yield library
    cuda.load_driver.cache_clear()


class CudaTensor:
    """What is used of a torch tensor on a GPU, and the ways a user has to its bytes."""

    device = "cuda:0"

    def __init__(self, library: ctypes.CDLL, values: NDArray[np.uint8]) -> None:
        self._library = library
        self._size_bytes = values.nbytes
        self._address = int(library.test_allocate(values.nbytes))
        assert self._address, "the device is full"
        self.copy_(values)

    def data_ptr(self) -> int:
        return self._address

    def numel(self) -> int:
        return self._size_bytes

    def element_size(self) -> int:
        return 1

    def is_contiguous(self) -> bool:
        return True

    def copy_(self, values: NDArray[np.uint8]) -> None:
        cuda.load_driver().copy_to_device(0, self._address, values.ctypes.data, values.nbytes)

    def cpu(self) -> NDArray[np.uint8]:
        values = np.empty(self._size_bytes, np.uint8)
        cuda.load_driver().copy_to_host(0, values.ctypes.data, self._address, values.nbytes)
        return values
