"""Lines of mcctl that pages, comments and messages name in passing, and what of them there is not.

What stands by itself, to be typed, tests/system/test_examples.py runs.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_SUFFIXES: Final = ("", ".html", ".js", ".md", ".py", ".service", ".sh", ".toml", ".target")
_QUOTED: Final = re.compile(r"`(?:\.venv/bin/)?mcctl ([^`]*)`")
_MACRO: Final = re.compile(r'^\.(?:Cm|Dl|Ic|Ql) "?mcctl ([^|>"\n]*)', re.MULTILINE)
_PLAIN: Final = re.compile(r"\bmcctl ([a-z]+(?: [a-z-]+)?(?: --[a-z-]+)+)")
_BROKEN: Final = re.compile(r'\s*"\s*\n\s*f?"\s*|\s*\n[# ]*')
"""Where a text goes on in the next line."""
_WORD: Final = re.compile(r"[a-z][a-z-]*")
_OF_ALL: Final = {"--help", "-h"}


def told_lines(checkout: Path) -> list[tuple[Path, str]]:
    """Without "mcctl", and where each stands."""
    return [(file, line) for file, text in _texts(checkout) for line in lines_in(text, file.suffix)]


def lines_in(text: str, suffix: str) -> list[str]:
    """Of a file with this suffix."""
    if suffix[1:].isdigit():
        return _MACRO.findall(text)
    joined = _BROKEN.sub(" ", text)
    return _QUOTED.findall(joined) + _PLAIN.findall(joined)


def what_is_wrong(line: str, leaves: Mapping[str, Any]) -> str:
    """Its verb or its flags that do not exist; empty where all do. `leaves`: all commands, by noun and verb."""
    words = [word.strip(".,;:") for word in line.split()]
    names = [word for word in words[:2] if _WORD.fullmatch(word)]
    if not names:
        return ""
    verb = names[0] if names[0] in leaves else " ".join(names)
    nouns = {name.split()[0] for name in leaves}
    if names[0] not in nouns or (verb not in leaves and len(names) > 1):
        return verb
    params = leaves[verb].params if verb in leaves else []
    known = {flag for param in params for flag in (*param.opts, *param.secondary_opts)}
    flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    return " ".join(sorted(flags - known - _OF_ALL))


def _texts(checkout: Path) -> Iterator[tuple[Path, str]]:
    files = [*checkout.glob("*.md"), checkout / "Makefile"]
    for folder in ("configs", "daemons", "man", "mcctl", "systemd"):
        files += (checkout / folder).rglob("*")
    for file in files:
        is_text = file.suffix in _SUFFIXES or file.suffix[1:].isdigit()
        if is_text and file.is_file() and "mcctl " in (text := file.read_text()):
            yield file, text
