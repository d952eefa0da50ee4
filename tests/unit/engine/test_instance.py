"""What an instance refuses before it takes memory."""

from pathlib import Path

import pytest
from kit.models import make_tiny_model

from daemons.config.common import EngineSection, ModelSection
from daemons.core.errors import ConfigError
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
