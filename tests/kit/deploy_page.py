"""mc-deploy(7) as its reader takes it: the commands of a section, and those of the first with values of one's own."""

import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "man" / "mc-deploy.7"
MACHINES = "1. The machines"


def commands(*sections: str) -> str:
    """What their .Bd blocks hold, as a reader copies it."""
    return "".join(block for section in sections for block in _blocks(section))


def sections() -> list[str]:
    """Those that hold commands."""
    titles = re.findall(r"^\.S[hs] (.*)\n", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [title for title in titles if ".Bd -literal" in _text_of(title)]


def _blocks(section: str) -> list[str]:
    found = re.findall(r"^\.Bd .*?\n(.*?)^\.Ed$", _text_of(section), re.MULTILINE | re.DOTALL)
    assert found, section
    return [block.replace("\\e", "\\") for block in found]


def _text_of(section: str) -> str:
    """Up to the next one of any kind."""
    parts = re.split(r"^\.S[hs] (.*)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return parts[parts.index(section) + 1]


def block(section: str, words: str) -> str:
    """The one of its .Bd blocks that has these words."""
    [found] = [each for each in _blocks(section) if words in each]
    return found


def function(section: str, name: str) -> str:
    """A function of the shell's, as the reader has it from that section on."""
    [found] = re.findall(rf"^{name}\(\) \{{.*?^\}}\n", commands(section), re.MULTILINE | re.DOTALL)
    return str(found)


def tagged(section: str) -> list[str]:
    """Lines of a list of commands: each is typed as it stands, on a machine."""
    return re.findall(
        r"^\.(?:It )?Ql ((?:mcctl|systemctl|journalctl) [^\n]*?) ?,?$",
        _text_of(section),
        re.MULTILINE,
    )


def machines(values: Mapping[str, str]) -> str:
    """The first section, in which a reader fills in these."""
    text = commands(MACHINES)
    for name, value in values.items():
        text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return text
