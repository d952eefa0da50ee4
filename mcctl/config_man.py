"""The .toml.5 manual pages, from the same structs as configs/: `python -m mcctl.config_man DIR` writes them anew."""

import sys
from pathlib import Path

from mcctl.config_text import PROCESSES, Key, Table, installed, sentence, tables

_DATE = "November 29, 2026"
_WHAT = {
    "mc-master": "the block directory, membership and the Conductor",
    "mc-cachenode": "memory lent to the KV pool",
    "mc-prefill": "a prefill instance",
    "mc-decode": "a decode instance",
    "mc-gateway": "the OpenAI-compatible HTTP API",
}


def page(process: str) -> str:
    """mdoc; every section and key with its meaning, its values and its default."""
    title = f"{process}.toml".upper()
    lines = [
        f".Dd {_DATE}",
        f".Dt {title} 5",
        ".Os",
        ".Sh NAME",
        f".Nm {process}.toml",
        f".Nd configuration of {_WHAT[process]}",
        ".Sh SYNOPSIS",
        f".Pa {installed(process)}",
        ".Sh DESCRIPTION",
        "A TOML file read once by",
        f".Xr {process} 8 .",
        "A key that is not listed here is an error: the daemon says which one and exits with status 78.",
        "Every key has a default but those marked as required;",
        "sections may be left out.",
        "A single value can be laid over the file with",
        ".Fl -set Ar section.key Ns = Ns Ar value .",
        "On",
        ".Dv SIGHUP",
        _reloaded(process),
    ]
    for table in tables(PROCESSES[process]):
        lines += _section(table)
    lines += [
        ".Sh FILES",
        ".Bl -tag -width Ds -compact",
        f".It Pa {installed(process)}",
        "where the unit looks",
        f".It Pa configs/{process}.toml",
        "in the source: every key commented at its default",
        ".El",
        ".Sh EXAMPLES",
        "Check a file before the daemon reads it:",
        f".Dl mcctl config check {installed(process).replace('INSTANCE', 'a')}",
        ".Pp",
        "Write a commented file to start from:",
        f".Dl mcctl config show {process}",
        ".Sh SEE ALSO",
        ".Xr mcctl 1 ,",
        ".Xr mc 7 ,",
        f".Xr {process} 8",
    ]
    return "\n".join(lines) + "\n"


def _reloaded(process: str) -> str:
    if process == "mc-master":
        return "the daemon reads log.level, the section conductor and the watermarks of pool again."
    return "the daemon reads log.level again; all else needs a restart."


def _section(table: Table) -> list[str]:
    lines = [f".Ss [{table.name}]", *_sentences(table.text)]
    if table.name == "models":
        return [*lines, "The names are the operator's; the section is empty by default."]
    lines.append(".Bl -tag -width Ds")
    for key in table.keys:
        lines += [f".It Ic {key.name}", *_sentences(key.text), *_sentences(sentence(key))]
        lines += _default(key)
    return [*lines, ".El"]


def _default(key: Key) -> list[str]:
    if key.is_required:
        return []
    # A bare " would begin a quoted argument of the macro.
    shown = _escape(key.default_text).replace('"', "\\(dq")
    return ["Defaults to", f".Li {shown} ."]


def _sentences(text: str) -> list[str]:
    """One a line, as mdoc wants them; a line must not begin with a control character."""
    text = text if text.endswith(".") or not text else f"{text}."
    lines = _escape(text).replace(". ", ".\n").splitlines()
    return [f"\\&{line}" if line.startswith((".", "'")) else line for line in lines]


def _escape(text: str) -> str:
    return text.replace("\\", "\\e")


if __name__ == "__main__":
    for name in PROCESSES:
        (Path(sys.argv[1]) / f"{name}.toml.5").write_text(page(name), encoding="utf-8")
