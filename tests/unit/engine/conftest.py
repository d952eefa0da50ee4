import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from daemons.engine.arena.kv_arena import KvArena
from daemons.engine.geometry import KvDtype
from daemons.engine.models import read_geometry
from daemons.engine.runner import Runner

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 200,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
# name -> (family, what differs from SHAPE)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-untied-llama3": ("Llama", {"tie_word_embeddings": False, "rope_parameters": LLAMA3}),
    "llama-mha-linear": ("Llama", {"num_key_value_heads": 6, "rope_parameters": LINEAR}),
    "llama-bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True, "num_attention_heads": 8}),
}


@dataclasses.dataclass(frozen=True)
class TinyModel:
    """A random checkpoint on disk, and the oracle's model of it in float32."""

    path: Path
    oracle: Any


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            family, differs = MODELS[name]
            torch.manual_seed(len(made))
            config = getattr(transformers, f"{family}Config")(**(SHAPE | differs))
            oracle = getattr(transformers, f"{family}ForCausalLM")(config).eval()
            for parameter in oracle.parameters():
                if parameter.ndim == 1:  # norms and biases start as ones and zeros: tell them apart
                    torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
            path = tmp_path_factory.mktemp(name)
            oracle.save_pretrained(path)
            made[name] = TinyModel(path, oracle)
        return made[name]

    return make


@pytest.fixture(scope="session", params=MODELS)
def tiny(request: pytest.FixtureRequest, make_tiny: Callable[[str], TinyModel]) -> TinyModel:
    return make_tiny(request.param)


@pytest.fixture(scope="session")
def make_runner() -> Callable[..., Runner]:
    made: dict[tuple[Path, KvDtype], Runner] = {}

    def make(path: Path, dtype: KvDtype = "float32") -> Runner:
        if (path, dtype) not in made:
            arena = KvArena(read_geometry(path, dtype), 8192, num_sequences=16)
            made[path, dtype] = Runner(path, arena)
        return made[path, dtype]

    return make
