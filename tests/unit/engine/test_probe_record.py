"""What an earlier start tried is taken over where nothing tells the two apart, and is as nothing else."""

import os
from pathlib import Path
from typing import Any

import pytest

from daemons.config.common import EngineSection, ModelSection
from daemons.core.ids import new_epoch
from daemons.engine import canary, probe_record, torch_engine
from daemons.engine.probe_record import FILE_NAME, ProbeRecord, key_of, recall, using
from daemons.engine.prompt import linear
from daemons.transfer import TransferEngine

KIND = tuple[int, tuple[int, ...]]


def never() -> Any:
    raise AssertionError("it was tried again")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a record with one finding."""
    record = ProbeRecord(tmp_path / "state" / FILE_NAME, "k")
    with using(record):
        assert recall("a", KIND, lambda: (1, (8, 16))) == (1, (8, 16))
    record.save()
    return tmp_path / "state" / FILE_NAME


def test_what_was_tried_is_recalled_by_the_next_start_alone(path: Path) -> None:
    with using(ProbeRecord(path, "k")):
        assert recall("a", KIND, never) == (1, (8, 16))
        assert recall("b", bool, lambda: True)
    assert ProbeRecord(path, "k").num_found == 1, "only what is saved"
    assert recall("a", KIND, lambda: (0, ())) == (0, ()), "without a record all is tried"


def test_a_record_of_another_machine_is_none(path: Path) -> None:
    assert ProbeRecord(path, "other").num_found == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"16", b"24"),
        lambda data: data.replace(b'"a"', b'"b"'),
        lambda _: b"",
        lambda _: b"\x00\xff" * 50,
        lambda _: b"[" * 100_000,
        lambda _: b'{"key":"k","digest":"","found":{"a":[0,[4]]}}',
        lambda data: data + b" " * (1 << 20),
    ],
)
def test_a_record_that_is_not_whole_is_none_and_is_written_anew(path: Path, spoil: Any) -> None:
    path.write_bytes(spoil(path.read_bytes()))
    record = ProbeRecord(path, "k")
    assert record.num_found == 0
    assert record.recall("a", KIND, lambda: (0, (4,))) == (0, (4,))
    record.save()
    assert ProbeRecord(path, "k").recall("a", KIND, never) == (0, (4,))


def test_what_is_no_file_or_cannot_be_written_stops_no_start(tmp_path: Path) -> None:
    for name in ("pipe", "piped.new"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "file").touch()
    (tmp_path / "itself").symlink_to("itself")
    places = ("pipe", "piped", "itself", ".", f"file/{FILE_NAME}")
    num_open = len(list(Path("/proc/self/fd").iterdir()))
    for path in (tmp_path / place for place in places):
        record = ProbeRecord(path, "k")
        assert record.num_found == 0
        record.keep("a", 1)
        record.save()
    assert len(list(Path("/proc/self/fd").iterdir())) == num_open
    assert [ProbeRecord(tmp_path / place, "k").num_found for place in places] == [1, 1, 1, 0, 0]


def test_a_finding_of_another_kind_is_tried_again(path: Path) -> None:
    assert ProbeRecord(path, "k").recall("a", bool, lambda: True) is True


def test_the_key_changes_with_whatever_chooses_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    first = key_of(b"m", "float32", "cpu", 1)
    assert first == key_of(b"m", "float32", "cpu", 1)
    keys = [
        first,
        key_of(b"n", "float32", "cpu", 1),
        key_of(b"m", "bfloat16", "cpu", 1),
        key_of(b"m", "float32", "cpu", 2),
    ]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    keys.append(key_of(b"m", "float32", "cpu", 1))
    monkeypatch.setattr(probe_record, "_processor", lambda: ["another"])
    keys.append(key_of(b"m", "float32", "cpu", 1))
    monkeypatch.setattr(probe_record, "_code", lambda: [b"another"])
    keys.append(key_of(b"m", "float32", "cpu", 1))
    assert len(set(keys)) == len(keys)


def test_a_restart_tries_nothing_again_runs_the_canary_and_names_the_same_kv(
    make_tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelSection(path=str(make_tiny("qwen2").path))
    engine = EngineSection(kv_memory="4MiB", dtype="float32")
    steps: list[int] = []
    find = canary.find_decode_difference

    def counted(*arguments: Any) -> str | None:
        steps.append(arguments[-1])
        return find(*arguments)

    monkeypatch.setattr(canary, "find_decode_difference", counted)
    namespaces = []
    for number in range(3):
        monkeypatch.setattr(linear, "_choices", {})
        if number == 1:
            monkeypatch.setattr(linear, "choose_way", never)
        with TransferEngine(epoch=new_epoch(), unix_dir=tmp_path) as transfer:
            instance = torch_engine.open_torch(model, engine, transfer, tmp_path / "state")
            namespaces.append(instance.model.namespace)
            assert instance.model.is_reuse_safe
            instance.close()
        if number == 1:
            monkeypatch.undo()
            (tmp_path / "state" / FILE_NAME).write_bytes(b"torn")
            monkeypatch.setattr(canary, "find_decode_difference", counted)
    assert len(set(namespaces)) == 1
    assert steps == [canary.DECODE_STEPS, canary.BRIEF_STEPS, canary.DECODE_STEPS]
