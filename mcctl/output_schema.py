"""What `--output json` of a verb prints, as JSON Schema (2020-12), made from the types themselves.

A verb says it with the decorator `prints`. Every field is always there; fields are only ever added. Bytes are hex.
"""

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_MARK: Final = "prints"
_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bytes: {"type": "string", "pattern": "^([0-9a-f][0-9a-f])*$"},
    types.NoneType: {"type": "null"},
    typing.Any: {},
    object: {},
}

Shape = Any
"""A type; a text, which is itself; a dict of names to shapes; or a function of one, where its import takes long."""
Verb = TypeVar("Verb", bound=Callable[..., Any])


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """`shapes` are alternatives. A stream is one object on each line."""

    shapes: tuple[Shape, ...]
    is_stream: bool = False


def prints(*shapes: Shape, is_stream: bool = False) -> Callable[[Verb], Verb]:
    """Decorator of a verb, below `@app.command`."""

    def mark(verb: Verb) -> Verb:
        setattr(verb, _MARK, Printed(shapes=shapes, is_stream=is_stream))
        return verb

    return mark


def printed_by(callback: Callable[..., Any] | None) -> Printed | None:
    found: Printed | None = getattr(callback, _MARK, None)
    return found


def schema_of(printed: Printed, title: str) -> dict[str, Any]:
    """One JSON Schema, with what is used more than once under $defs."""
    named: dict[str, Any] = {}
    found = [_of(shape, named) for shape in printed.shapes]
    top = found[0] if len(found) == 1 else {"anyOf": found}
    described = "one object on each line" if printed.is_stream else "one object"
    schema = {"$schema": DIALECT, "title": title, "description": described, **top}
    return schema | {"$defs": dict(sorted(named.items()))} if named else schema


def _of(hint: Any, named: dict[str, Any]) -> dict[str, Any]:
    if isinstance(hint, types.FunctionType):
        return _of(hint(), named)
    if isinstance(hint, str):
        return {"const": hint}
    if isinstance(hint, Mapping):
        return _object({name: _of(inner, named) for name, inner in hint.items()})
    if isinstance(hint, typing.NewType):
        return _of(hint.__supertype__, named)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint, named)
    known = _PLAIN.get(hint)
    return known if known is not None else _generic(hint, named)


def _generic(hint: Any, named: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _of(arguments[0], named)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(inner, named) for inner in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(arguments[1], named)}
    if origin in (list, tuple):
        return {"type": "array", "items": _of(arguments[0], named) if arguments else {}}
    raise TypeError(f"no JSON Schema for {hint}")


def _struct(struct: type[msgspec.Struct], named: dict[str, Any]) -> dict[str, Any]:
    name = struct.__name__
    if name not in named:
        named[name] = {}  # it may hold itself
        fields = {field.name: _of(field.type, named) for field in msgspec.structs.fields(struct)}
        said = (struct.__doc__ or "").strip()
        is_own = said and not said.startswith(f"{name}(")
        about = {"description": " ".join(said.split())} if is_own else {}
        named[name] = {**about, **_object(fields)}
    return {"$ref": f"#/$defs/{name}"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}
