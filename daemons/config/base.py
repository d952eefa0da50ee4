"""Reading TOML into frozen structs, with errors that name the file, the key and what is wrong with it."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli

from daemons.core.errors import ConfigError


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: unknown keys are errors, values never change after start."""


Config = TypeVar("Config", bound=Section)


def load_config(
    path: Path | None, config_type: type[Config], overrides: list[str] | None = None
) -> Config:
    """The file (or only defaults when `path` is None) with `section.key=value` overrides laid over it.

    Raises ConfigError with one line: file, key, problem.
    """
    where = str(path) if path is not None else "the command line"
    tree = _read(path) if path is not None else {}
    for override in overrides or []:
        _apply(tree, override)
    try:
        return msgspec.convert(tree, config_type, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_explain(str(error), config_type)}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomli.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; see configs/ for a commented example of every daemon"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r}: write section.key=value")
    try:
        value = tomli.loads(f"value = {text}")["value"]
    except tomli.TOMLDecodeError:
        value = text.strip()
    *sections, leaf = key.strip().split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"--set {override!r}: {section} is a value, not a section")
    tree[leaf] = value


def _explain(message: str, config_type: type[Section]) -> str:
    """msgspec says "Object contains unknown field `x` - at `$.transfer`"; say it as an operator would."""
    problem, _, place = message.partition(" - at `$")
    section = place.rstrip("`").lstrip(".")
    if problem.startswith("Object contains unknown field"):
        name = problem.split("`")[1]
        known = ", ".join(_known_keys(config_type, section))
        return f"unknown key `{f'{section}.' if section else ''}{name}`; known here: {known}"
    return f"`{section}`: {problem[0].lower()}{problem[1:]}" if section else problem


def _known_keys(config_type: type[Section], section: str) -> list[str]:
    struct: Any = config_type
    for name in filter(None, section.split(".")):
        fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
        struct = fields.get(name)
        if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
            return []
    return [field.encode_name for field in msgspec.structs.fields(struct)]
