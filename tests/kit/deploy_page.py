"""mc-deploy(7) as its reader takes it: the commands of a section, and those of the first with values of one's own."""

import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "man" / "mc-deploy.7"
MACHINES = "1. The machines"


def commands(*sections: str) -> str:
    """What their .Bd blocks hold, as a reader copies it."""
    text = PAGE.read_text(encoding="utf-8")
    found = ""
    for section in sections:
        _, _, after = text.partition(f".Ss {section}\n")
        of_section = re.split(r"^\.S[hs] ", after, maxsplit=1, flags=re.MULTILINE)[0]
        blocks = re.findall(r"^\.Bd .*?\n(.*?)^\.Ed$", of_section, re.MULTILINE | re.DOTALL)
        assert blocks, section
        found += "".join(blocks).replace("\\e", "\\")
    return found


def machines(values: Mapping[str, str]) -> str:
    """The first section, in which a reader fills in these."""
    text = commands(MACHINES)
    for name, value in values.items():
        text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return text
