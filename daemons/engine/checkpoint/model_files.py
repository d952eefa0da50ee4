"""The files of a model directory, found and parsed with errors that help; free of torch."""

import json
from pathlib import Path
from typing import Any

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
