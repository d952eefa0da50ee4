"""Checks a value against a JSON Schema, as far as those of mcctl go; a field that no schema knows is wrong, too."""

import re
from typing import Any

_TYPES: dict[str, Any] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "array": list,
    "object": dict,
}


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> list[str]:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return problems(value, root["$defs"][name], root, at)
    if "anyOf" in schema:
        found = [problems(value, each, root, at) for each in schema["anyOf"]]
        return [] if not all(found) else min(found, key=len)
    if "const" in schema or "enum" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        return [] if value in allowed else [f"{at}: {value!r} is none of {allowed}"]
    kind = schema.get("type")
    if kind is None:
        return []
    if not isinstance(value, _TYPES[kind]) or (kind != "boolean" and isinstance(value, bool)):
        return [f"{at}: {value!r} is no {kind}"]
    if kind == "string" and not re.search(schema.get("pattern", ""), value):
        return [f"{at}: {value!r} does not match {schema['pattern']}"]
    if kind == "array":
        items = [problems(v, schema["items"], root, f"{at}[{i}]") for i, v in enumerate(value)]
        return [problem for found in items for problem in found]
    return _of_object(value, schema, root, at) if kind == "object" else []


def _of_object(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> list[str]:
    if "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return [p for key, v in value.items() for p in problems(v, inner, root, f"{at}.{key}")]
    known = schema["properties"]
    found = [f"{at}.{name} is missing" for name in schema["required"] if name not in value]
    found += [f"{at}.{name} is in no schema" for name in value if name not in known]
    for name, inner in known.items():
        if name in value:
            found += problems(value[name], inner, root, f"{at}.{name}")
    return found
