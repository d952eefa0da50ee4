"""The boundary: flags before and after the verb, one line per error, exit codes by family."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from daemons.core.errors import FAMILIES, McError, NotFound, Unavailable
from mcctl import exit_codes
from mcctl.cache.own_address import own_address
from mcctl.command_line.complaints import examples_in
from mcctl.command_line.nouns import COMMANDS, LazyGroup
from mcctl.main import main
from mcctl.settings import DEFAULT_ENDPOINT

CONFIG = Path(__file__).parents[3] / "configs" / "mc-master.toml"
SILENT = "tcp://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_every_family_has_its_exit_code() -> None:
    expected = {
        "not_found": 3,
        "conflict": 4,
        "rejected": 5,
        "exhausted": 6,
        "unavailable": 7,
        "transfer": 8,
        "protocol": 9,
        "config": 78,
    }
    assert {
        code: exit_codes.exit_code(family("x")) for code, family in FAMILIES.items()
    } == expected
    assert exit_codes.exit_code(McError("x")) == exit_codes.BUG


def test_leaf_error_has_the_code_of_its_family() -> None:
    class NoSuchBlock(NotFound):
        pass

    assert exit_codes.exit_code(NoSuchBlock("x")) == 3


@pytest.mark.parametrize("noun", sorted(COMMANDS))
def test_every_noun_has_help(
    noun: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([noun, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Example: mcctl {noun}" in out
    usage, _, rest = out.partition("\n")
    assert usage.startswith("Usage: mcctl")
    assert "...\n" not in rest, "a verb whose first sentence does not fit its line"


def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    import typer.main

    from mcctl import main as module

    group = typer.main.get_command(module.app)
    for noun in COMMANDS:
        verbs = getattr(group.load(noun), "commands", None) or {"": None}  # type: ignore[attr-defined]
        for verb in verbs:
            words = [noun, verb] if verb else [noun]
            assert main([*words, "--help"]) == 0
            out = capsys.readouterr().out
            assert f"Example: mcctl {' '.join(words)}" in out, words
            assert "--output" in out


def test_every_example_in_help_has_options_and_arguments_that_exist() -> None:
    """And values that they take; its files and folders are the reader's."""
    import typer.main

    from mcctl import main as module

    group = typer.main.get_command(module.app)
    nouns = {noun: group.load(noun) for noun in COMMANDS}  # type: ignore[attr-defined]
    verbs = [leaf for noun in nouns.values() for leaf in getattr(noun, "commands", {}).values()]
    examples = {
        line for each in (group, *nouns.values(), *verbs) for line in examples_in(each.help)
    }
    refused = []
    for line in examples:
        noun, *words = shlex.split(re.split(r" [|>] ", line.removeprefix("mcctl "))[0])
        commands = getattr(nouns[noun], "commands", None)
        leaf = nouns[noun] if commands is None else commands[words.pop(0)]
        try:
            leaf.make_context(leaf.name, words)
        except typer.BadParameter as error:
            refused.append((line, error.message))
    assert [each for each in refused if not each[1].endswith("does not exist.")] == []
    assert len(examples) > 80


def test_a_verb_without_what_it_needs_says_what_that_is_and_shows_a_line_that_would_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import typer.main

    from mcctl import main as module

    group = typer.main.get_command(module.app)
    needy = 0
    for noun in COMMANDS:
        for verb, leaf in getattr(group.load(noun), "commands", {}).items():  # type: ignore[attr-defined]
            required = [param for param in leaf.params if param.required]
            if not required:
                continue
            needy += 1
            assert main([noun, verb]) == exit_codes.USAGE
            err = capsys.readouterr().err
            assert err.startswith(("mcctl: Missing argument ", "mcctl: Missing option --"))
            assert f". For example: `mcctl {noun} {verb} " in err, err
            assert err.endswith(f"Try `mcctl {noun} {verb} --help`.\n")
            assert re.search(r"Missing \w+ [\w-]+: \w", err), f"{err}: what is it?"
    assert needy > 15


def test_an_option_without_its_value_is_told_where_its_help_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cluster", "up", "--kv-memory"]) == exit_codes.USAGE
    err = capsys.readouterr().err
    assert "For example: `mcctl cluster up " in err
    assert err.endswith("Try `mcctl cluster up --help`.\n")


def test_help_of_the_root_lists_every_noun(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {noun} " in out for noun in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["node", "nonsense"],
        ["node", "list", "--nonsense"],
        ["node", "list", "--output", "xml"],
        ["cache", "list", "--limit", "none"],
        ["cache", "show", "not-hex"],
        ["cache", "locate"],
        ["events", "--topic", "weather"],
        ["request", "send", "--prompt", ""],
        ["cache", "locate", "--file", "/dev/null"],
        ["events", "--events", "weather"],
        ["status", "--endpoint", "host:7700"],
        ["request", "send", "--prompt", "x", "--url", "host:8000"],
        ["cluster", "up", "--kv-memory", "12XB"],
        ["keys", "revoke", "a", "--key", "", "--yes"],
        ["node", "drain", "\udcff"],
        ["cache", "put", "a", "/dev/null", "--bind-host", "\udcff"],
        ["segment", "add", "--node", "n", "--bytes", "9" * 400],
        ["events", "--last", "9" * 40],
        ["events", "--since", "9" * 40],
        ["events", "--since", "9" * 5000],
        ["events", "--for", "1e300"],
        ["node", "list", "--timeout", "inf"],
        ["node", "list", "--timeout", "nan"],
        ["node", "list", "--watch", "--interval", "1e300"],
        ["request", "list", "--limit", "9" * 40],
        ["cluster", "up", "--dtype", "int8"],
        ["quickstart", "--dtype", "int8"],
    ],
)
def test_usage_is_one_line_and_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == exit_codes.USAGE
    err = capsys.readouterr().err
    assert err.startswith("mcctl: ")
    assert len(err.splitlines()) == 1


def test_a_number_that_only_our_own_reckoning_made_too_large_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LazyGroup, "load", lambda *_: (1.0).__mul__(10**400))
    assert main(["status"]) == exit_codes.BUG
    assert "this is a bug: OverflowError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["node", "list", "--config", "x" * 5000],
        ["topology", "discover", "--sysfs", "x" * 5000],
        ["topology", "discover", "--override", "x" * 5000],
        ["keys", "list", "--directory", "x" * 5000],
    ],
)
def test_a_path_that_no_file_can_have_is_one_line_and_78(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 78
    err = capsys.readouterr().err
    assert "name too long" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--endpoint", SILENT, "--timeout", "0.2", "node", "list"],
        ["node", "list", "--endpoint", SILENT, "--timeout", "0.2"],
        ["status", "--endpoint", SILENT, "--timeout", "0.2"],
        ["events", "--endpoint", SILENT, "--timeout", "0.2", "--for", "1"],
        ["request", "send", "--prompt", "x", "--url", "http://127.0.0.1:1"],
        ["cluster", "status"],
    ],
)
def test_nobody_there_is_one_line_and_7(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 7
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_typo_in_a_noun_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statsu"]) == exit_codes.USAGE
    assert "Did you mean 'status'? Try `mcctl --help`." in capsys.readouterr().err


def test_ctrl_c_is_one_line_and_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr("mcctl.model_store.local_models", interrupted)
    assert main(["model", "list"]) == exit_codes.INTERRUPTED
    assert capsys.readouterr().err == "mcctl: interrupted\n"


def test_clear_refuses_when_nobody_can_be_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["cache", "clear", "--endpoint", SILENT, "--timeout", "0.2"]) == 5
    assert "--yes" in capsys.readouterr().err


def test_wrong_key_in_the_tools_own_config_is_78(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mcctl.toml"
    path.write_text('endpint = "tcp://127.0.0.1:7700"\n')
    assert main(["node", "list", "--config", str(path)]) == 78
    assert "unknown key `endpint`" in capsys.readouterr().err


def test_output_may_come_from_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mcctl.toml"
    path.write_text('output = "json"\n')
    assert main(["model", "list", "--config", str(path)]) == 0
    assert "models" in json.loads(capsys.readouterr().out)


def test_bug_is_one_line_and_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> list[object]:
        raise ValueError("boom")

    monkeypatch.setattr("mcctl.model_store.local_models", broken)
    assert main(["model", "list"]) == exit_codes.BUG
    err = capsys.readouterr().err
    assert "boom" in err
    assert len(err.splitlines()) == 1
    with pytest.raises(ValueError, match="boom"):
        main(["model", "list", "--verbose"])


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr("mcctl.model_store.local_models", interrupted)
    assert main(["model", "list"]) == exit_codes.INTERRUPTED


def test_nobody_at_the_defaults_is_told_how_to_get_a_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(*_: object) -> None:
        raise Unavailable(f"{DEFAULT_ENDPOINT} does not answer; is it running?")

    monkeypatch.setattr("mcctl.commands.status.ClusterClient", unavailable)
    assert main(["status"]) == 7
    assert "is it running? `mcctl cluster up` starts a cluster here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--endpoint", "tcp://mastr.lan:7700"], ["--url", "http://mastr.lan:1"]]
)
def test_a_host_that_nobody_has_heard_of_is_named(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown(host: str, *_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, host)

    def unavailable(*_: object) -> None:
        raise Unavailable("tcp://mastr.lan:7700 did not answer within 5.00 s")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr("mcctl.commands.status.ClusterClient", unavailable)
    verb = ["status"] if arguments[0] == "--endpoint" else ["request", "send", "--prompt", "hi"]
    assert main([*verb, *arguments]) == 7
    assert "; this host finds no address of mastr.lan: check the name" in capsys.readouterr().err


def test_a_key_file_without_the_key_of_the_master_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(*_: object) -> None:
        raise Unavailable("tcp://m:1 closed the connection before a word was said")

    monkeypatch.setattr("mcctl.commands.status.ClusterClient", unavailable)
    arguments = ["status", "--endpoint", "tcp://m:1", "--key-file", "me.key"]
    assert main(arguments) == 7
    assert "--master-key is missing" in capsys.readouterr().err
    assert main([*arguments, "--master-key", "ab" * 32]) == 7
    assert "--master-key" not in capsys.readouterr().err


def test_unavailable_is_not_shadowed_by_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> list[object]:
        raise Unavailable("away")

    monkeypatch.setattr("mcctl.model_store.local_models", away)
    assert main(["model", "list"]) == 7


@pytest.mark.parametrize("form", ["table", "json", "plain"])
def test_a_reader_that_has_seen_enough_is_no_failure(form: str) -> None:
    command = [sys.executable, "-m", "mcctl", "config", "show", str(CONFIG), "--output", form]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("stdout", "status", "said"),
    [
        (">/dev/full", 6, "mcctl: cannot write the output: No space left on device\n"),
        (">&-", 0, ""),
    ],
)
@pytest.mark.parametrize("form", ["table", "json"])
def test_output_that_cannot_be_written_is_one_line(
    stdout: str, status: int, said: str, form: str
) -> None:
    command = f"{sys.executable} -m mcctl model list --output {form} {stdout}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, said)


@pytest.mark.parametrize("verb", [["cache", "put", "name"], ["cache", "import"]])
def test_puts_listen_where_they_are_told(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = tmp_path / "value"
    value.write_bytes(b"v")
    foreign = ["--bind-host", "203.0.113.1", "--endpoint", SILENT]
    assert main([*verb, str(value), *foreign]) == 78
    assert "203.0.113.1" in capsys.readouterr().err


@pytest.mark.parametrize("master", ["tcp://127.0.0.1:7700", f"tcp://localhost:1#{'ab' * 32}"])
def test_the_address_towards_a_master_on_this_host_is_loopback(master: str) -> None:
    assert own_address(master) in ("127.0.0.1", "::1")


@pytest.mark.parametrize("master", ["tcp://127.0.0.1:port", "nonsense"])
def test_without_a_route_to_the_master_it_is_loopback_too(master: str) -> None:
    assert own_address(master) == "127.0.0.1"


def test_every_flag_that_is_a_duration_takes_one_with_a_unit_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import typer.main

    from mcctl import main as module

    group = typer.main.get_command(module.app)
    assert main(["cache", "clear", "--older-than", "1y", "--yes"]) == exit_codes.USAGE
    assert "like 500ms, 90s, 10m, 1h or 7d" in capsys.readouterr().err
    assert main(["top", "--interval", "10ms"]) == exit_codes.USAGE
    assert "10ms: at least 0.1 s" in capsys.readouterr().err
    in_seconds = re.compile(r"\bseconds\b", re.IGNORECASE)
    for noun in COMMANDS:
        for leaf in getattr(group.load(noun), "commands", {}).values():  # type: ignore[attr-defined]
            for param in leaf.params:
                assert not in_seconds.search(getattr(param, "help", None) or ""), param.opts
