"""What a text in a config file may look like where its type alone does not say. Pure: nothing is looked up or bound.

A field's form is named in its annotation, `Annotated[str, msgspec.Meta(extra={"form": "host"})]`; `FORMS` has them all.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, get_args, get_origin

import msgspec

from daemons.core.errors import ConfigError
from daemons.core.units import parse_size
from daemons.protocol.address import is_public_key, is_wildcard

MAX_PORT: Final = 65_535
_MAX_SHOWN: Final = 80
_YEAR_S: Final = 365 * 86_400
_TCP: Final = re.compile(
    r"tcp://(\*|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]|[A-Za-z0-9._-]+):(\*|\d{1,5})"
)
_IPC: Final = re.compile(r"ipc://\S+")
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]+")
_HOST_PORT: Final = re.compile(
    r"(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]|[A-Za-z0-9._-]+):(\d{1,5})"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DEVICE: Final = re.compile(r"cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True, slots=True)
class Form:
    """`allowed` says in words what is; `accepts` whether a value is that."""

    allowed: str
    accepts: Callable[[Any], bool]


def _is_listen(text: str) -> bool:
    tcp = _TCP.fullmatch(text)
    if tcp is None:
        return _IPC.fullmatch(text) is not None
    return tcp[2] == "*" or int(tcp[2]) <= MAX_PORT


def is_endpoint(text: str) -> bool:
    """Of a peer: a host and port that one can connect to."""
    tcp = _TCP.fullmatch(text)
    if tcp is None:
        return _IPC.fullmatch(text) is not None
    return tcp[1] != "*" and tcp[2] != "*" and 0 < int(tcp[2]) <= MAX_PORT


def _is_told(text: str) -> bool:
    """A listen address that peers are told, so it must name one host."""
    tcp = _TCP.fullmatch(text)
    return _is_listen(text) and (tcp is None or not is_wildcard(tcp[1].strip("[]")))


def _is_own(text: str) -> bool:
    return _HOST.fullmatch(text) is not None and not is_wildcard(text)


def is_host_port(text: str) -> bool:
    """IPv6 in brackets; port 0 for a free one."""
    match = _HOST_PORT.fullmatch(text)
    return match is not None and int(match[2]) <= MAX_PORT


def _is_size(value: str | int) -> bool:
    try:
        return parse_size(value) > 0
    except ConfigError:
        return False


FORMS: Final[Mapping[str, Form]] = {
    "listen": Form("tcp://ADDRESS:PORT, PORT at most 65535, 0 for a free one", _is_listen),
    "told": Form(
        "tcp://ADDRESS:PORT with an address that peers reach, not all of them; PORT at most 65535, 0 for a free one",
        _is_told,
    ),
    "endpoint": Form("tcp://HOST:PORT, PORT 1 to 65535", is_endpoint),
    "endpoint_or_empty": Form(
        "tcp://HOST:PORT, PORT 1 to 65535", lambda text: not text or is_endpoint(text)
    ),
    "host_port_or_empty": Form(
        'HOST:PORT, PORT at most 65535, or ""', lambda t: not t or is_host_port(t)
    ),
    "host": Form(
        "an address of this host, such as 127.0.0.1", lambda t: _HOST.fullmatch(t) is not None
    ),
    "own": Form("an address of this host that peers reach, not all of them", _is_own),
    "hosts": Form(
        "addresses of this host that peers reach, each once",
        lambda hosts: all(map(_is_own, hosts)) and len(set(hosts)) == len(hosts),
    ),
    "url_or_empty": Form(
        "http://HOST:PORT", lambda t: not t or t.startswith(("http://", "https://"))
    ),
    "name": Form(
        "letters, digits and . _ - (at most 128, the first a letter or digit)",
        lambda text: _NAME.fullmatch(text) is not None,
    ),
    "key": Form("64 hex digits", is_public_key),
    "key_or_empty": Form('64 hex digits, or ""', lambda t: not t or is_public_key(t)),
    "path": Form("the path of a directory", lambda text: bool(text.strip())),
    "path_or_empty": Form(
        'the path of a directory, or ""', lambda text: not text or bool(text.strip())
    ),
    "device": Form("cpu or cuda:N", lambda text: _DEVICE.fullmatch(text) is not None),
    "size": Form('more than 0 bytes, a number or a text such as "512MiB"', _is_size),
    "seconds": Form(
        "a number of seconds, at most a year", lambda s: math.isfinite(s) and s <= _YEAR_S
    ),
    "transports": Form(
        "one or more of shm, tcp, rdma, each once", lambda t: bool(t) and len(set(t)) == len(t)
    ),
}


def complaint(form: str, value: object) -> str | None:
    """What to say to the operator about a value that is not of this form."""
    allowed, accepts = FORMS[form].allowed, FORMS[form].accepts
    return None if accepts(value) else f"{show(value)}: write {allowed}"


def show(value: object) -> str:
    """A value as TOML has it, cut where it is long."""
    text = str(value) if isinstance(value, float) else json.dumps(value, default=str)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def form_of(annotation: Any) -> str | None:
    """The form that a field's annotation names."""
    while get_origin(annotation) is not None and hasattr(annotation, "__metadata__"):
        for meta in annotation.__metadata__:
            if isinstance(meta, msgspec.Meta) and meta.extra and "form" in meta.extra:
                return str(meta.extra["form"])
        annotation = get_args(annotation)[0]
    return None


@cache
def forms_of(struct: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """(field, form) of those that have one."""
    found = ((field.name, form_of(field.type)) for field in msgspec.structs.fields(struct))
    return tuple((name, form) for name, form in found if form is not None)
