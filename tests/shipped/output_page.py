"""man/mcctl-output.7 as the verbs' own schemas have it; `python tests/shipped/pages.py` writes it anew."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from mcctl.command_line.nouns import COMMANDS
from mcctl.main import app
from mcctl.output_schema import Printed, printed_by, schema_of

_HEX = "^([0-9a-f][0-9a-f])*$"
_WORDS = {
    "string": "text",
    "boolean": "bool",
    "integer": "int",
    "number": "number",
    "null": "null",
}
_HEAD = """.Dd November 29, 2026
.Dt MCCTL-OUTPUT 7
.Os
.Sh NAME
.Nm mcctl-output
.Nd what mcctl prints with --output json
.Sh DESCRIPTION
With
.Fl -output Cm json
a verb of
.Xr mcctl 1
prints one object on standard output, or, where the list below says so, one object on each line as long as it runs.
Progress and complaints go to standard error, and the exit status is the same as without.
.Pp
Every field is always there.
Fields are only ever added: pass over those that you do not know.
Hashes and other bytes are hex.
Times end in _s and are seconds, sizes end in _bytes.
.Pp
With
.Fl -output Cm schema
after it, a verb prints the JSON Schema (2020-12) of that object, and does nothing else.
.Sh VERBS
.Bl -tag -width Ds
"""
_FOOT = """.El
.Sh EXAMPLES
Nodes that are not well:
.Dl mcctl node list -o json | jq -r '.nodes[] | select(.state != \\(dqalive\\(dq) | .node.node'
.Pp
What a script may rely on:
.Dl mcctl status --output schema
.Sh SEE ALSO
.Xr mcctl 1 ,
.Xr mc-protocol 7
"""


def all_leaves() -> Iterator[tuple[str, Any]]:
    """(words after mcctl, the command) of every verb."""
    root: Any = typer.main.get_command(app)
    for noun in COMMANDS:
        command = root.load(noun)
        leaves = getattr(command, "commands", None) or {"": command}
        for verb, leaf in leaves.items():
            yield f"{noun} {verb}".strip(), leaf


def all_verbs() -> Iterator[tuple[str, Printed | None]]:
    """(words after mcctl, what it prints) of every verb."""
    for words, leaf in all_leaves():
        yield words, printed_by(leaf.callback)


def output_page() -> str:
    lines = [_HEAD]
    named: dict[str, Any] = {}
    for words, printed in all_verbs():
        if printed is None:
            continue
        schema = schema_of(printed, words)
        named |= schema.get("$defs", {})
        lines.append(f".It Cm {words}\n")
        if printed.is_stream:
            lines.append("One object on each line.\n")
        alternatives = schema.get("anyOf", [schema])
        for number, each in enumerate(alternatives):
            lines.append("Or:\n" if number else "")
            lines.append(_fields(each))
    lines.append(".El\n.Sh RECORDS\n.Bl -tag -width Ds\n")
    for name, record in sorted(named.items()):
        lines.append(f".It Sy {name}\n{_prose(record.get('description', ''))}{_fields(record)}")
    return "".join([*lines, _FOOT])


def _prose(text: str) -> str:
    said = text.replace("\\", "\\e").replace("`", "").replace(". ", ".\n").replace("; ", ";\n")
    shown = [f"\\&{line}" if line.startswith((".", "'")) else line for line in said.splitlines()]
    return "".join(f"{line}\n" for line in shown) + (".Pp\n" if shown else "")


def _fields(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"{_text(schema)}.\n"
    shown = [f"{name} ({_text(inner)})" for name, inner in schema["properties"].items()]
    return ",\n".join(shown) + ".\n"


def _text(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": reference}:
            return str(reference).rpartition("/")[2]
        case {"const": value}:
            return f'"{value}"'
        case {"enum": values}:
            return " | ".join(map(str, values))
        case {"anyOf": alternatives}:
            return " or ".join(map(_text, alternatives))
        case {"type": "array", "items": items}:
            return f"list of {_text(items)}" if items else "list"
        case {"type": "object", "additionalProperties": values}:
            return f"map of text to {_text(values)}"
        case {"type": "string", "pattern": pattern} if pattern == _HEX:
            return "hex"
        case {"type": kind}:
            return _WORDS[kind]
        case _:
            return "any"


if __name__ == "__main__":
    (Path(__file__).resolve().parents[2] / "man" / "mcctl-output.7").write_text(output_page())
