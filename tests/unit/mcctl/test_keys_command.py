"""mcctl keys on its files: private, whole, and what each verb leaves in the list."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from daemons.config.key_files import read_key_file, read_key_list
from daemons.core.errors import ConfigError, Exhausted
from daemons.core.file_lock import locked
from daemons.core.ids import NodeId
from daemons.service.identity import open_identity
from mcctl.main import main


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["keys", *words, "--output", "json"]) == code
    out = capsys.readouterr().out
    return json.loads(out) if out else None


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "mooncake")


def test_a_key_is_private_and_opens_as_its_node(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    made = run(capsys, "generate", "c1", "--role", "cachenode", "--directory", folder)
    secret = Path(made["key_file"])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    assert "secret =" not in Path(made["public_file"]).read_text()
    identity = open_identity(str(secret), node=NodeId("c1"), role="cachenode")
    assert identity is not None
    assert identity.pair.public == made["public"]
    with pytest.raises(ConfigError, match="is the key of cachenode c1"):
        open_identity(str(secret), node=NodeId("c2"), role="cachenode")
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="open to everyone"):
        open_identity(str(secret), node=NodeId("c1"), role="cachenode")


def test_a_key_is_not_overwritten(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    first = run(capsys, "generate", "c1", "--role", "cachenode", "--directory", folder)
    run(capsys, "generate", "c1", "--role", "cachenode", "--directory", folder, code=4)
    assert read_key_file(Path(first["key_file"])).public == first["public"]


@pytest.mark.parametrize(
    "words", [["rotate", "c1"], ["generate", "c2", "--role", "admin", "--authorize"]]
)
def test_a_list_that_cannot_be_written_leaves_every_key_as_it_was(
    capsys: pytest.CaptureFixture[str], folder: str, words: list[str]
) -> None:
    run(capsys, "generate", "c1", "--role", "cachenode", "--authorize", "--directory", folder)
    before = contents(folder)
    with locked(Path(folder) / "authorized.toml"):
        run(capsys, *words, "--directory", folder, code=6)
    assert contents(folder) == before


def test_a_key_that_cannot_be_written_changes_nothing(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    run(capsys, "generate", "c1", "--role", "cachenode", "--authorize", "--directory", folder)
    public = Path(folder) / "keys" / "c1.pub"
    public.unlink()
    public.mkdir()
    secret, listed = (
        public.with_suffix(".key").read_text(),
        read_key_list(Path(folder) / "authorized.toml"),
    )
    run(capsys, "rotate", "c1", "--directory", folder, code=78)
    assert public.with_suffix(".key").read_text() == secret
    assert read_key_list(Path(folder) / "authorized.toml") == listed
    assert {path.name for path in public.parent.iterdir()} == {"c1.key", "c1.pub"}


def test_an_empty_beginning_is_not_every_key(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    run(capsys, "generate", "c1", "--role", "cachenode", "--authorize", "--directory", folder)
    run(capsys, "revoke", "c1", "--key", "", "--yes", "--directory", folder, code=2)
    assert len(read_key_list(Path(folder) / "authorized.toml").allowed()) == 1


def contents(folder: str) -> dict[str, str]:
    found = sorted(
        path for path in Path(folder).rglob("*") if path.suffix in (".key", ".pub", ".toml")
    )
    return {str(path): path.read_text() for path in found}


def test_authorize_revoke_and_back(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    made = run(capsys, "generate", "c1", "--role", "cachenode", "--directory", folder)
    run(capsys, "authorize", made["public_file"], "--directory", folder)
    listed = run(capsys, "authorize", made["key_file"], "--directory", folder)
    assert [key["public"] for key in listed["keys"]] == [made["public"]], "once"
    file = Path(listed["file"])
    assert "secret" not in file.read_text()
    assert [key.node for key in read_key_list(file).allowed()] == ["c1"]
    run(capsys, "revoke", "c1", "--directory", folder, code=5)  # nobody can be asked
    run(capsys, "revoke", "c1", "--yes", "--directory", folder)
    assert read_key_list(file).allowed() == []
    assert run(capsys, "list", "--directory", folder)["keys"][0]["revoked"]
    run(capsys, "revoke", "c1", "--yes", "--directory", folder, code=3)
    run(capsys, "authorize", made["public_file"], "--directory", folder)
    assert len(read_key_list(file).allowed()) == 1


def test_rotate_lets_both_in_until_the_old_one_is_revoked(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    words = ("generate", "d1", "--role", "decode", "--authorize", "--directory", folder)
    old = run(capsys, *words)
    new = run(capsys, "rotate", "d1", "--directory", folder)
    file = Path(folder) / "authorized.toml"
    assert {key.public for key in read_key_list(file).allowed()} == {old["public"], new["public"]}
    run(capsys, "revoke", "d1", "--key", old["public"][:16], "--yes", "--directory", folder)
    assert [key.public for key in read_key_list(file).allowed()] == [new["public"]]
    assert read_key_file(Path(new["key_file"])).role == "decode"


def test_a_list_that_another_changes_is_not_lost(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    words = ("generate", "d1", "--role", "decode", "--authorize", "--directory", folder)
    run(capsys, *words)
    file = Path(folder) / "authorized.toml"
    before = file.read_text()
    with locked(file), pytest.raises(Exhausted), locked(file):
        pass
    with locked(file):
        run(capsys, "revoke", "d1", "--yes", "--directory", folder, code=6)
    assert file.read_text() == before
    assert len(list(Path(folder).glob(".authorized.toml.*"))) == 1, "the lock alone"


@pytest.mark.parametrize(
    "words", [("generate", "../x", "--role", "decode"), ("generate", "x", "--role", "king")]
)
def test_names_and_roles_are_checked(
    capsys: pytest.CaptureFixture[str], folder: str, words: tuple[str, ...]
) -> None:
    run(capsys, *words, "--directory", folder, code=2)
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    "text",
    [
        "[[key]]\nnode = 'a'\nrole = 'king'\npublic = '00'\n",
        "[[key]]\nnode = 'a'\nrole = 'decode'\npublic = 'xyz'\n",
        "not toml",
        2 * f"[[key]]\nnode = 'a'\nrole = 'decode'\npublic = '{'ab' * 32}'\n",
    ],
)
def test_a_broken_list_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "authorized.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_key_list(path)
    assert str(path) in caught.value.message


def test_every_verb_shows_the_operators_key(checkout: Path) -> None:
    texts = {path: path.read_text() for path in (checkout / "mcctl").rglob("*.py")}
    without = [
        path.name
        for path, text in texts.items()
        if text.count("ClusterClient(settings.master,") != text.count("settings.key_file) as")
        and "ClusterClient(settings.master," in text
    ]
    assert not without, "ClusterClient(settings.master, settings.wait_s, settings.key_file)"


def test_namespaces_are_a_clients_and_the_error_shows_a_line_that_would_do(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    assert main(["keys", "generate", "t1", "--role", "client", "--directory", folder]) == 2
    said = capsys.readouterr().err
    assert "`mcctl keys generate t1 --role client --namespace NAMESPACE`" in said
    assert "cachenode" not in said
    words = ["keys", "generate", "p1", "--role", "prefill", "--namespace", "a"]
    assert main([*words, "--directory", folder]) == 2
    assert "--namespace is for --role client alone, not for prefill" in capsys.readouterr().err
