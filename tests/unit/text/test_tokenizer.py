"""Loading a model directory: a small one built here, and the real one where there is one."""

import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from daemons.core.errors import ConfigError
from daemons.text.detokenizer import make_detokenizer
from daemons.text.tokenizer import Tokenizer, load_tokenizer

REAL_NAME = "SmolLM2-135M-Instruct"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"eos_token": {"content": "</s>"}, "bos_token": "<s>"})
    write(tmp_path, "config.json", {"max_position_embeddings": 512, "eos_token_id": 7})
    write(tmp_path, "generation_config.json", {"eos_token_id": [257, 9]})
    return tmp_path


def write(directory: Path, name: str, value: object) -> None:
    (directory / name).write_text(json.dumps(value))


def test_special_tokens_eos_and_context(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.special_tokens == {"eos_token": "</s>", "bos_token": "<s>"}
    assert tokenizer.eos_token_ids == {257, 7, 9}
    assert tokenizer.special_token_ids == {256, 257}
    assert tokenizer.max_context_tokens == 512
    assert tokenizer.vocab_size == 258
    assert tokenizer.max_token_chars == 4
    assert tokenizer.chat_template is None


def test_special_tokens_are_added_only_when_asked(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    bare = tokenizer.encode("ab")
    assert tokenizer.encode("ab", add_special_tokens=True) == [256, *bare]
    assert tokenizer.decode([256, *bare]) == "ab"
    assert tokenizer.decode([256, *bare], skip_special_tokens=False) == "<s>ab"


def test_unknown_context_is_none(directory: Path) -> None:
    write(directory, "config.json", {})
    write(directory, "tokenizer_config.json", {"model_max_length": int(1e30)})
    assert load_tokenizer(directory).max_context_tokens is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_broken_files_are_named(directory: Path, name: str) -> None:
    (directory / name).write_text("{")
    with pytest.raises(ConfigError, match=name):
        load_tokenizer(directory)


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist"):
        load_tokenizer(tmp_path)


def real_directory() -> Path | None:
    given = os.environ.get("MC_MODEL_DIR")
    cached = Path("~/.cache/mooncake/models").expanduser() / REAL_NAME
    candidates = [Path(given)] if given else [cached]
    return next((path for path in candidates if (path / "tokenizer.json").is_file()), None)


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    directory = real_directory()
    if directory is None:
        pytest.skip(f"no model: set MC_MODEL_DIR, or fetch {REAL_NAME} with `mcctl model fetch`")
    return load_tokenizer(directory)


def test_real_model_renders_its_template(real: Tokenizer) -> None:
    assert real.chat_template is not None
    text = real.chat_template.render([{"role": "user", "content": "hi"}])
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert 2 in real.eos_token_ids
    assert real.max_context_tokens == 8192


def test_real_model_streams_what_it_decodes(real: Tokenizer) -> None:
    text = "Größe, 日本語 🙂👩‍👩‍👧 and\n\tcode: x = {'a': 1}  # two  spaces"
    tokens = real.encode(text)
    detokenizer = make_detokenizer(real)
    assert "".join([*(detokenizer.push([token]) for token in tokens), detokenizer.finish()]) == text
