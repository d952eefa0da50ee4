"""What an instance refuses before it takes memory."""

from pathlib import Path

import pytest
from kit.models import make_tiny_model

from daemons.config.common import EngineSection, ModelSection
from daemons.core.errors import ConfigError
from daemons.engine import torch_engine
from daemons.engine.geometry import KvDtype
from daemons.engine.torch_engine import open_torch
from daemons.transfer import TransferEngine


def test_arena_that_is_too_small_says_how_large_it_must_be(tmp_path: Path) -> None:
    model = ModelSection(path=str(make_tiny_model(tmp_path / "tiny")))
    transfer = TransferEngine(transports=("tcp",))
    try:
        # 3 layers x k and v x 2 heads x 16 dimensions x 4 bytes: 768 bytes a token
        with pytest.raises(ConfigError, match=r"at least 192\.0 KiB, and 768 B for each") as caught:
            open_torch(model, EngineSection(kv_memory="100KiB", dtype="float32"), transfer)
        assert "`engine.kv_memory`: 100KiB" in caught.value.message
    finally:
        transfer.close()


@pytest.mark.parametrize(
    ("asked", "device", "of_host", "expected"),
    [
        ("auto", "cpu", "bfloat16", "bfloat16"),
        ("auto", "cpu", "float32", "float32"),
        ("auto", "cuda:0", "float32", "bfloat16"),
        ("bfloat16", "cpu", "float32", "bfloat16"),
        ("float32", "cpu", "bfloat16", "float32"),
    ],
)
def test_auto_is_what_the_device_computes_fast(
    monkeypatch: pytest.MonkeyPatch, asked: KvDtype, device: str, of_host: KvDtype, expected: str
) -> None:
    monkeypatch.setattr(torch_engine, "host_dtype", lambda: of_host)
    assert torch_engine.dtype_here(EngineSection(dtype=asked, device=device)) == expected
