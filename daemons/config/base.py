"""Reading TOML into frozen structs, with errors that name the file, the key and what is wrong with it."""

import re
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
import tomli

from daemons.config.forms import complaint, forms_of, show
from daemons.core.errors import ConfigError

NO_TOML: Final = (ValueError, RecursionError)
"""What tomli raises: also for a number of too many digits, and for what nests too deep."""

MAX_FILE_BYTES: Final = 8 << 20

_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
"""Of a path such as transfer.transports[0]."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: unknown keys are errors, texts have the form they need, values never change after start.

    A section with a `__post_init__` of its own calls this one.
    """

    def __post_init__(self) -> None:
        for name, form in forms_of(type(self)):
            why = complaint(form, getattr(self, name))
            if why is not None:
                raise ValueError(f"`{name}`: {why}")


Config = TypeVar("Config", bound=Section)


def load_config(
    path: Path | None,
    config_type: type[Config],
    overrides: list[str] | None = None,
    *,
    advice: str = "see configs/ for a commented example of every daemon",
) -> Config:
    """The file (or only defaults when `path` is None) with `section.key=value` overrides laid over it.

    Raises ConfigError with one line: file, key, problem; `advice` is for who has no such file.
    """
    where = str(path) if path is not None else "the command line"
    tree = _read(path, advice) if path is not None else {}
    for override in overrides or []:
        _apply(tree, override)
    try:
        return msgspec.convert(tree, config_type, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_explain(str(error), config_type, tree)}") from None


def _read(path: Path, advice: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: longer than {MAX_FILE_BYTES} bytes; it is no config")
        return tomli.loads(data.decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; {advice}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except NO_TOML as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r}: write section.key=value")
    try:
        value = tomli.loads(f"value = {text}")["value"]
    except NO_TOML:
        value = text.strip()
    *sections, leaf = key.strip().split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"--set {override!r}: {section} is a value, not a section")
    tree[leaf] = value


def _explain(message: str, config_type: type[Section], tree: dict[str, Any]) -> str:
    """msgspec says "Object contains unknown field `x` - at `$.transfer`"; say it as an operator would."""
    problem, _, place = message.partition(" - at `$")
    key = place.rstrip("`").lstrip(".")
    if problem.startswith("Object contains unknown field"):
        name = problem.split("`")[1]
        known = ", ".join(_known_keys(config_type, key))
        return f"unknown key `{f'{key}.' if key else ''}{name}`; known here: {known}"
    if not key:
        return problem
    if problem.startswith("`"):  # a form of the section's own: it names its key
        return f"`{key}.{problem[1:]}"
    value = _value_at(tree, key)
    given = "" if value is None or isinstance(value, dict) else f"{show(value)}: "
    said = f"{problem[0].lower()}{problem[1:]}"
    allowed = ", ".join(map(str, _choices_at(config_type, key)))
    if allowed and said.startswith("invalid enum value"):
        said = f"write one of {allowed}"
    return f"`{key}`: {given}{said}"


def _value_at(tree: Any, key: str) -> Any:
    for name, number in _STEP.findall(key):
        try:
            tree = tree[int(number)] if number else tree[name]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _choices_at(config_type: type[Section], key: str) -> tuple[Any, ...]:
    """The values of a Literal, or of a list of them."""
    hint: Any = config_type
    for name, number in _STEP.findall(key):
        while hasattr(hint, "__metadata__"):
            hint = get_args(hint)[0]
        if number:
            hint = next(iter(get_args(hint)), None)
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            hint = {field.encode_name: field.type for field in msgspec.structs.fields(hint)}.get(
                name
            )
    return get_args(hint) if get_origin(hint) is Literal else ()


def _known_keys(config_type: type[Section], section: str) -> list[str]:
    struct: Any = config_type
    for name in filter(None, section.split(".")):
        fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
        struct = fields.get(name)
        if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
            return []
    return [field.encode_name for field in msgspec.structs.fields(struct)]
