"""What is written from the source itself, so that it cannot differ from it; the tests compare.

`python tests/shipped/pages.py` writes configs/*.toml, man/*.toml.5, man/mcctl-output.7 and the messages of
man/mc-protocol.7 anew.
"""

import re
import runpy
import types
import typing
from pathlib import Path

import msgspec

from daemons.protocol import messages
from daemons.protocol.base import Record
from mcctl.config_text import PROCESSES, Key, Table, commented, installed, sentence, tables

Struct = type[msgspec.Struct]

_DATE = "November 29, 2026"
_WHAT = {
    "mc-master": "the block directory, membership and the Conductor",
    "mc-cachenode": "memory lent to the KV pool",
    "mc-prefill": "a prefill instance",
    "mc-decode": "a decode instance",
    "mc-gateway": "the OpenAI-compatible HTTP API",
}


def config_page(process: str) -> str:
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
        return "the daemon reads log.level and the sections conductor and pool again, but for pool.eviction."
    return "the daemon reads log.level again; all else needs a restart."


def _section(table: Table) -> list[str]:
    lines = [f".Ss [{table.name}]", *_sentences(table.text)]
    if table.name == "models":
        return [*lines, "The names are the operator's; at least one is required."]
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


_GROUPS = (
    ("Requests to every server", messages.AnyServer),
    ("Requests to mc-master", messages.MasterRequest),
    ("Requests to mc-cachenode", messages.CachenodeRequest),
    ("Requests to mc-prefill", messages.PrefillRequest),
    ("Requests to mc-decode", messages.DecodeRequest),
    ("Replies", messages.Reply),
    ("Parts of a stream", messages.Part),
    ("Notices from mc-master to a node", messages.Notice),
    ("Events", messages.Event),
)
_FIRST, _AFTER = ".Sh MESSAGES\n", ".Sh EVENTS\n"


def protocol_page(old: str) -> str:
    """The page with its list of messages as the source has them now; the prose around it stays."""
    before, _, rest = old.partition(_FIRST)
    _, _, after = rest.partition(_AFTER)
    return before + _FIRST + "".join(f"{line}\n" for line in _messages()) + _AFTER + after


def _messages() -> list[str]:
    lines: list[str] = []
    seen: list[Struct] = []
    records: list[Struct] = []
    for title, union in _GROUPS:
        lines += [f".Ss {title}", ".Bl -tag -width Ds"]
        for struct in typing.get_args(union):
            if struct in seen:
                continue
            seen.append(struct)
            _collect_records(struct, records)
            fields = _fields(struct)
            lines += [f".It Sy {struct.__name__}", *_prose(struct)]
            lines += [".Pp", "Fields:", *fields] if fields else []
        lines.append(".El")
    lines += [
        ".Ss Records",
        "Values inside messages, encoded as arrays in this order; new fields go to the end.",
    ]
    lines.append(".Bl -tag -width Ds")
    for record in records:
        prose = _prose(record)
        lines += [
            f".It Sy {record.__name__}",
            *prose,
            *([".Pp"] if prose else []),
            *_fields(record),
        ]
    return [*lines, ".El"]


def _collect_records(hint: object, found: list[Struct]) -> None:
    for inner in typing.get_args(hint):
        _collect_records(inner, found)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in found:
        if issubclass(hint, Record):
            found.append(hint)
        for field in msgspec.structs.fields(hint):
            _collect_records(field.type, found)


def _prose(struct: Struct) -> list[str]:
    text = (struct.__doc__ or "").strip()
    if not text or text.startswith(f"{struct.__name__}("):
        return []  # msgspec's own
    text = _escape(" ".join(text.split()))
    return re.sub(r"([.;:]) (?=[A-Z`])", r"\1\n", text).replace("`", "").splitlines()


def _fields(struct: Struct) -> list[str]:
    found = [
        f"{field.encode_name} ({_type(field.type)}{'' if field.required else ', optional'})"
        for field in msgspec.structs.fields(struct)
    ]
    return [f"{text}{',' if text != found[-1] else '.'}" for text in found]


def _type(hint: typing.Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "nil"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(item) for item in arguments)
    if origin is typing.Literal:
        return " | ".join(str(item) for item in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"map of {_type(arguments[0])} to {_type(arguments[1])}"
    if origin is typing.Annotated:
        return _type(arguments[0])
    return "bin" if hint is bytes else str(hint.__name__)


def write_all(checkout: Path) -> None:
    for process in PROCESSES:
        (checkout / "configs" / f"{process}.toml").write_text(commented(process))
        (checkout / "man" / f"{process}.toml.5").write_text(config_page(process))
    page = checkout / "man" / "mc-protocol.7"
    page.write_text(protocol_page(page.read_text()))


if __name__ == "__main__":
    write_all(Path(__file__).resolve().parents[2])
    runpy.run_path(str(Path(__file__).with_name("output_page.py")), run_name="__main__")
