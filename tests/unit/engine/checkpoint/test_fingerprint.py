import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from daemons.engine.checkpoint import fingerprint
from daemons.engine.checkpoint.fingerprint import (
    CACHE_NAME,
    NamespaceParts,
    model_fingerprint,
    namespace,
)

PARTS = NamespaceParts(b"f" * 16, "bfloat16", 64, "torch=1")


def model(path: Path, value: float = 1.0) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    save_file({"w": torch.full((8,), value)}, path / "model.safetensors")
    return path


def test_equal_files_have_one_fingerprint(tmp_path: Path) -> None:
    one, same = model(tmp_path / "a"), model(tmp_path / "b")
    assert len(model_fingerprint(one)) == 16
    assert model_fingerprint(one) == model_fingerprint(same)
    assert model_fingerprint(one) != model_fingerprint(model(tmp_path / "c", 2.0))


def test_config_counts_too(tmp_path: Path) -> None:
    one, other = model(tmp_path / "a"), model(tmp_path / "b")
    (other / "config.json").write_text('{"rope_theta": 1}')
    assert model_fingerprint(one) != model_fingerprint(other)


def test_kept_answer_saves_reading_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model(tmp_path / "a")
    first = model_fingerprint(path)
    hashed: list[Any] = []
    real = fingerprint.hash_files
    monkeypatch.setattr(fingerprint, "hash_files", lambda files: hashed.append(1) or real(files))
    assert model_fingerprint(path) == first
    assert not hashed
    save_file({"w": torch.zeros(8)}, path / "model.safetensors")
    os.utime(path / "model.safetensors", ns=(1, 1))
    assert model_fingerprint(path) != first
    assert hashed


def test_broken_or_impossible_cache_is_no_error(tmp_path: Path) -> None:
    path = model(tmp_path / "a")
    first = model_fingerprint(path)
    for text in ("", "[]", "{}", '{"files": 1}'):
        (path / CACHE_NAME).write_text(text)
        assert model_fingerprint(path) == first
    (path / CACHE_NAME).unlink()
    (path / CACHE_NAME).mkdir()  # unwritable even for root
    assert model_fingerprint(path) == first


def test_every_part_separates_namespaces() -> None:
    others = [
        replace(PARTS, fingerprint=b"g" * 16),
        replace(PARTS, dtype="float32"),
        replace(PARTS, block_tokens=128),
        replace(PARTS, numerics_id="torch=2"),
        replace(PARTS, tp_shard="0/2"),
        replace(PARTS, adapter="lora"),
        replace(PARTS, tenant_salt=b"s"),
        replace(PARTS, layout_version=99),
    ]
    names = {namespace(parts) for parts in [PARTS, *others]}
    assert len(names) == 1 + len(others)
    assert {len(name) for name in names} == {16}


def test_parts_do_not_run_into_each_other() -> None:
    one = namespace(replace(PARTS, tp_shard="ab", adapter="c"))
    assert one != namespace(replace(PARTS, tp_shard="a", adapter="bc"))
