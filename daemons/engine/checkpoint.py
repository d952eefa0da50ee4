"""A Hugging Face model directory: its config and its safetensors, read with errors that help."""

import ctypes
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from daemons.core.errors import ConfigError

NEXT_STEP = (
    "point the config at a Hugging Face directory, or make one from a GGUF file with "
    "`mcctl model convert`"
)


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object of a model directory; raises ConfigError where it is missing or broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path.parent} has no {path.name}: {NEXT_STEP}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object: {NEXT_STEP}")
    return value


def weight_files(model_dir: Path) -> list[Path]:
    """The directory's safetensors files, in a fixed order."""
    if not model_dir.is_dir():
        raise ConfigError(f"no model directory at {model_dir}: {NEXT_STEP}")
    index = model_dir / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        files = [model_dir / name for name in names]
    else:
        files = sorted(model_dir.glob("*.safetensors"))
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        lost = ", ".join(missing) or "safetensors weights"
        raise ConfigError(f"{model_dir} lacks {lost}: {NEXT_STEP}")
    return files


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
