"""Manual pages: valid mdoc, and complete."""

import re
import shutil
import subprocess
import typing
from pathlib import Path

import pytest
import typer.main
from shipped.output_page import all_leaves, all_verbs, output_page
from shipped.pages import protocol_page
from shipped.told_lines import lines_in, told_lines, what_is_wrong
from typer.testing import CliRunner

from daemons.protocol import messages
from mcctl import exit_codes, main
from mcctl.command_line.nouns import COMMANDS

UNIONS = (messages.Request, messages.Reply, messages.Part, messages.Notice, messages.Event)
PAGES = sorted((Path(__file__).parents[2] / "man").glob("*.[1-8]"))


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_is_valid_mdoc(page: Path) -> None:
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_cross_references_exist(page: Path) -> None:
    ours = {path.name for path in PAGES}
    for name, section in re.findall(r"^\.Xr (mc\S*) (\d)", page.read_text(), re.MULTILINE):
        assert f"{name}.{section}" in ours, f"{page.name}: {name}({section})"


def test_mcctl_page_has_every_verb_and_flag(checkout: Path) -> None:
    text = (checkout / "man" / "mcctl.1").read_text()
    group: typing.Any = typer.main.get_command(main.app)
    missing = [flag for param in group.params for flag in _flags(param) if flag not in text]
    for noun in COMMANDS:
        command = group.load(noun)
        verbs = getattr(command, "commands", None) or {"": command}
        for verb, leaf in verbs.items():
            if f".It Cm {f'{noun} {verb}'.strip()}" not in text:
                missing.append(f"{noun} {verb}")
            missing += [
                f"{noun} {verb} {flag}"
                for param in leaf.params
                for flag in _flags(param)
                if flag not in text
            ]
    assert not missing


def test_every_verb_is_told_in_eighty_columns_with_an_example_and_all_its_options() -> None:
    for words, leaf in all_leaves():
        examples = [line for line in (leaf.help or "").splitlines() if line.startswith("Example: ")]
        assert examples, words
        assert all(example.startswith(f"Example: mcctl {words}") for example in examples), words
        assert all(len(f"  {example}") <= 80 for example in examples), words
        assert not [p.name for p in leaf.params if not getattr(p, "help", "")], words


def test_lines_that_are_named_in_passing_can_be_typed(checkout: Path) -> None:
    leaves, told = dict(all_leaves()), told_lines(checkout)
    wrong = [(file.name, line) for file, line in told if what_is_wrong(line, leaves)]
    assert not wrong
    assert len(told) > 200


def test_a_verb_or_flag_that_there_is_not_is_seen() -> None:
    leaves = dict(all_leaves())
    assert what_is_wrong("cache list --older-than 60", leaves) == ""
    assert what_is_wrong("keys", leaves) == ""
    assert what_is_wrong("cash list", leaves) == "cash list"
    assert what_is_wrong("cache lost", leaves) == "cache lost"
    assert what_is_wrong("cache list --elder-than 60", leaves) == "--elder-than"
    assert lines_in('"run `mcctl config "\n    "check FILE`"', ".py") == ["config check FILE"]
    assert lines_in(".Cm mcctl top --count 1 .", ".8") == ["top --count 1 ."]


def test_completion_offers_every_noun_and_verb() -> None:
    def offered(*words: str) -> list[str]:
        line = {"COMP_WORDS": f"mcctl {' '.join(words)} ", "COMP_CWORD": str(1 + len(words))}
        asked = {"_MCCTL_COMPLETE": "complete_bash"} | line
        return CliRunner().invoke(main.app, [], prog_name="mcctl", env=asked).output.split()

    verbs: dict[str, list[str]] = {}
    for words, _ in all_leaves():
        noun, _, verb = words.partition(" ")
        verbs.setdefault(noun, []).extend([verb] if verb else [])
    assert set(offered()) >= set(verbs)
    for noun, found in verbs.items():
        assert set(offered(noun)) >= set(found), noun


def test_mcctl_page_has_every_exit_code(checkout: Path) -> None:
    text = (checkout / "man" / "mcctl.1").read_text()
    codes = {0, 1, 2, exit_codes.INTERRUPTED, *exit_codes.BY_FAMILY.values()}
    assert codes <= {int(code) for code in re.findall(r"^\.It (\d+)$", text, re.MULTILINE)}


def test_protocol_page_has_every_message_and_field(checkout: Path) -> None:
    text = (checkout / "man" / "mc-protocol.7").read_text()
    assert text == protocol_page(text), "write it anew: python tests/shipped/pages.py"
    named = set(re.findall(r"^\.It Sy (\w+)$", text, re.MULTILINE))
    for union in UNIONS:
        assert {struct.__name__ for struct in typing.get_args(union)} <= named


def test_every_verb_says_what_it_prints() -> None:
    silent = [words for words, printed in all_verbs() if printed is None]
    assert not silent, "give it the decorator `prints` of mcctl/output_schema.py"


def test_output_page_is_what_the_verbs_say(checkout: Path) -> None:
    text = (checkout / "man" / "mcctl-output.7").read_text()
    assert text == output_page(), "write it anew: python tests/shipped/pages.py"


def _flags(param: typing.Any) -> list[str]:
    """As mdoc spells them: -model of --model, after .Fl."""
    long = [flag[1:] for flag in param.opts if flag.startswith("--") and flag != "--help"]
    return [flag for flag in long if flag != "-version"]
