"""A Hugging Face model directory: its config and its safetensors, read with errors that help."""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from daemons.core.errors import ConfigError
from daemons.engine.checkpoint.model_files import weight_files


class Weights:
    """Tensors of an open checkpoint by name, converted to one dtype and device as they are taken."""

    def __init__(self, files: dict[str, Any], dtype: torch.dtype, device: str) -> None:
        self._files = files
        self._dtype = dtype
        self._device = device

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...] | None:
        """From the file's header, without reading the tensor; None where there is none."""
        file = self._files.get(name)
        return None if file is None else tuple(file.get_slice(name).get_shape())

    def take(self, name: str) -> torch.Tensor:
        """A copy of the tensor, or ConfigError naming what the checkpoint lacks.

        One view left of a mapped file would keep all its pages in memory.
        """
        return self._read(name).to(device=self._device, dtype=self._dtype, copy=True)

    def take_fused(self, names: list[str]) -> torch.Tensor:
        """Several tensors stacked along their rows, so that one multiplication serves all."""
        stacked = torch.cat([self._read(name) for name in names])
        return stacked.to(device=self._device, dtype=self._dtype)

    def take_optional(self, names: list[str]) -> torch.Tensor | None:
        """The stacked tensors if the checkpoint has them all, else None."""
        return self.take_fused(names) if all(name in self for name in names) else None

    def _read(self, name: str) -> torch.Tensor:
        if name not in self._files:
            raise ConfigError(f"the checkpoint has no tensor {name}: is the download complete?")
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise ConfigError(f"{name} is quantised ({tensor.dtype}): use a full-width checkpoint")
        return tensor


def give_back_free_memory() -> None:
    """Return the heap's free pages to the system: loading leaves about half a small model's."""
    if hasattr(ctypes.CDLL(None), "malloc_trim"):  # glibc
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def open_weights(model_dir: Path, dtype: torch.dtype, device: str) -> Iterator[Weights]:
    """The directory's tensors, readable inside the block."""
    with ExitStack() as stack:
        by_name: dict[str, Any] = {}
        for path in weight_files(model_dir):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{path} is not readable: {error}; download it anew") from error
            by_name |= dict.fromkeys(file.keys(), file)
        yield Weights(by_name, dtype, device)
