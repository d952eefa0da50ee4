"""Config files as text: each key of a process with its meaning, type and default, read from the structs themselves."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import msgspec

from daemons.config.base import Section
from daemons.config.forms import form_of
from daemons.core.errors import ConfigError
from mcctl.cluster.plan import CONFIG_TYPES

PROCESSES: Final = {f"mc-{role}": config_type for role, config_type in CONFIG_TYPES.items()}
_WIDTH: Final = 100
_EXAMPLES: Final = {
    "model.path": "/var/lib/mooncake/models/SmolLM2-135M-Instruct",
    "models": '"SmolLM2-135M-Instruct" = "/var/lib/mooncake/models/SmolLM2-135M-Instruct"',
}
_REQUIRED: Final = object()
_MEANINGS: Final = {
    "id": "Name of this process in the cluster: unique, and the same after a restart.",
    "listen": "Endpoint of its own server; others are told it, so it must be reachable for them.",
    "metrics": "host:port of /metrics; empty for none.",
    "endpoint": "The master's node.listen.",
    "events": "Endpoint where blocks and nodes that come and go are published.",
    "host": "Address that is bound.",
    "port": "Port that is bound.",
    "level": "Least important lines that are logged. Read again on SIGHUP.",
    "device": "Torch device, e.g. cpu or cuda:0.",
    "threads": "Torch threads of this instance; more than one core's worth slows down its neighbours.",
    "block_tokens": "Tokens of one KV block, the unit of hashing, reuse and eviction.",
    "chunk_tokens": "Rows of one prefill step, counted from the prompt's start.",
    "max_sequences": "Requests that may hold KV at once.",
    "transports": "In order of preference.",
    "size": "Memory that is lent, taken whole at start. How much is worth it: `mcctl simulate plan`, mc-deploy(7).",
    "workers": "Threads that copy blocks.",
    "interval_s": "Longest time until what happened is told.",
    "beat_interval_s": "Time between two beats of a node.",
    "suspect_beats": "Missed beats after which others are preferred.",
    "dead_beats": "Missed beats after which the node's blocks are dropped from the directory.",
    "high_watermark": "Share of a node's memory at which eviction begins.",
    "low_watermark": "Share of a node's memory at which eviction ends.",
    "policy": "How prefill and decode instances are chosen.",
    "seed": "Of the random policy.",
    "max_body": "Largest request body; beyond it 413.",
    "default_max_tokens": "Answer length where the client names none.",
    "max_retries": "Attempts on other nodes after one failed.",
    "max_batch": "Sequences decoded together.",
    "max_queued": "Requests that may wait; beyond it they are refused.",
    "pull_workers": "Threads that pull KV from prefill.",
}
"""Of keys whose struct says nothing, by name."""
_FORM_WORDS: Final = {
    "listen": "an endpoint tcp://ADDRESS:PORT, port 0 for a free one",
    "endpoint": "an endpoint tcp://HOST:PORT",
    "host_port_or_empty": "a text HOST:PORT",
    "told": "an endpoint tcp://ADDRESS:PORT that peers reach, no wildcard; port 0 for a free one",
    "own": "an address that peers reach, no wildcard",
    "host": "an address",
    "hosts": "a list of addresses, no wildcard",
    "path": "a path",
    "path_or_empty": 'a path, or ""',
    "device": "cpu or cuda:N",
    "size": 'a size such as "512MiB", or bytes',
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of one section. `default` is _REQUIRED where there is none."""

    section: str
    name: str
    default: Any
    kind: str
    """What may be written, in words."""
    text: str

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED

    @property
    def default_text(self) -> str:
        """As TOML; empty for a required key."""
        return "" if self.is_required else json.dumps(self.default)


@dataclass(frozen=True, slots=True)
class Table:
    """One [section]. A free table (names chosen by the operator) has no keys of its own."""

    name: str
    text: str
    keys: tuple[Key, ...]


def tables(config_type: type[Section]) -> list[Table]:
    """In the order of the struct, sections of free names last, as TOML needs no order."""
    found = []
    for field in msgspec.structs.fields(config_type):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            keys = tuple(_keys(field.encode_name, field.type))
            found.append(Table(field.encode_name, _first_paragraph(field.type), keys))
        else:
            text = _field_texts(config_type).get(field.name, "")
            found.append(Table(field.encode_name, text, ()))
    return found


def commented(process: str) -> str:
    """The file of configs/: every key commented at its default; a required one is set to an example."""
    lines = [
        f"# {process}.toml: {process}.toml(5). Every key is shown at its default; take away the # to change it.",
        f"# Check with: mcctl config check FILE. Installed as {installed(process)}.",
    ]
    for table in tables(PROCESSES[process]):
        lines += ["", *_comment(table.text), f"[{table.name}]"]
        if not table.keys:
            lines.append(_EXAMPLES[table.name])
        for number, key in enumerate(table.keys):
            lines += [""] if number else []
            lines += _comment(f"{key.text} {sentence(key)}".strip())
            if key.is_required:
                lines.append(f"{key.name} = {json.dumps(_EXAMPLES[key.path])}")
            else:
                lines.append(f"# {key.name} = {key.default_text}")
    return "\n".join(lines) + "\n"


def effective(config: Section) -> dict[str, Any]:
    """Every key with the value that the daemon would run with."""
    plain: dict[str, Any] = msgspec.to_builtins(config)
    return plain


def process_of(path: Path) -> str:
    """mc-prefill of mc-prefill.toml and mc-prefill@gpu0.toml. Raises ConfigError for another name."""
    process = path.name.removesuffix(".toml").partition("@")[0]
    if process not in PROCESSES:
        raise ConfigError(
            f"{path}: whose config is it? Name it PROCESS.toml or PROCESS@INSTANCE.toml, "
            f"PROCESS being one of {', '.join(PROCESSES)}"
        )
    return process


def installed(process: str) -> str:
    """Templates have a file per instance."""
    if process == "mc-master":
        return f"/etc/mooncake/{process}.toml"
    return f"/etc/mooncake/{process}@INSTANCE.toml"


def _keys(section: str, struct: type[Section]) -> Iterator[Key]:
    texts = _field_texts(struct)
    for field in msgspec.structs.fields(struct):
        if field.default is not msgspec.NODEFAULT:
            default = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        else:
            default = _REQUIRED
        text = texts.get(field.name) or _MEANINGS.get(field.encode_name, "")
        yield Key(section, field.encode_name, default, _kind(field.name, field.type), text)


def _field_texts(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The string below each field in the source: msgspec does not keep it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            texts[field.target.id] = _one_line(str(after.value.value))  # type: ignore[attr-defined]  # seen above
    return texts


def _kind(name: str, hint: Any) -> str:
    bounds: list[str] = []
    form = form_of(hint)
    while get_origin(hint) is not None and hasattr(hint, "__metadata__"):
        for meta in hint.__metadata__:
            bounds += _bounds(meta)
        hint = get_args(hint)[0]
    words = "a text"
    arguments = get_args(hint)
    if form in _FORM_WORDS:
        words = _FORM_WORDS[form]
    elif hint is bool:
        words = "true or false"
    elif hint is int:
        words = "a number"
    elif hint is float:
        words = "a duration in seconds" if name.endswith("_s") else "a number"
    elif get_origin(hint) is list:
        inner = get_args(arguments[0]) or ("text",)
        words = "a list of " + " | ".join(str(item) for item in inner)
    elif get_origin(hint) is dict:
        values = " | ".join(str(item) for item in get_args(arguments[1]))
        words = f"a table of names, each with one of {values}"
    elif arguments:
        words = "one of " + " | ".join(str(item) for item in arguments)
    return f"{words} ({', '.join(bounds)})" if bounds else words


def _bounds(meta: msgspec.Meta) -> list[str]:
    named = (
        ("ge", "at least"),
        ("gt", "more than"),
        ("le", "at most"),
        ("multiple_of", "a multiple of"),
    )
    values = ((words, getattr(meta, field)) for field, words in named)
    return [f"{words} {value:g}" for words, value in values if value is not None]


def sentence(key: Key) -> str:
    required = " Required." if key.is_required else ""
    return f"Takes {key.kind}.{required}"


def _first_paragraph(struct: type) -> str:
    return _one_line((struct.__doc__ or "").split("\n\n")[0])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH - 2)]
