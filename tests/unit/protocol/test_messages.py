"""The wire contract: bytes that were ever sent still decode, and today's encoding is the recorded one.

`golden/*.json` hold one message of each type as hex, one file per state of the contract. When a field was added:
`MC_GOLDEN=write pytest tests/unit/protocol` writes the newest file; the older ones stay and must still decode.
"""

import json
import os
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemons.core import errors
from daemons.protocol import (
    base,
    block,
    cache,
    event,
    failure,
    key,
    lookup,
    messages,
    node,
    objects,
    pin,
    probe,
    replication,
    report,
    request,
    request_list,
    segment,
    tenant,
    tiers,
)
from daemons.protocol.base import Message, Record
from daemons.protocol.failure import to_error, to_failure

MODULES = (
    base,
    block,
    cache,
    event,
    failure,
    key,
    lookup,
    node,
    objects,
    pin,
    probe,
    replication,
    report,
    request,
    request_list,
    segment,
    tenant,
    tiers,
)
GOLDEN = Path(__file__).parent / "golden"


def all_types() -> list[type[Message]]:
    found = {
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    }
    return sorted(found, key=lambda message: message.__name__)


TYPES = all_types()


def sample(kind: Any, name: str = "") -> Any:
    """A fixed value of a type, every optional field set."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return sample(kind.__supertype__, name)
    if origin is typing.Annotated:
        return sample(arguments[0], name)
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return sample(next(a for a in arguments if a is not types.NoneType), name)
    if origin is list:
        return [sample(arguments[0], name)]
    if origin is tuple:
        return (sample(arguments[0], name),)
    if origin is dict:
        return {sample(arguments[0], name): sample(arguments[1], name)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{field.name: sample(field.type, field.name) for field in fields})
    return {int: 7, float: 1.5, bool: True, str: name or "x", bytes: b"\x01" * 16}[kind]


def strategy(kind: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return strategy(kind.__supertype__)
    if origin is typing.Annotated:
        return strategy(arguments[0])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*[strategy(argument) for argument in arguments])
    if origin is list:
        return st.lists(strategy(arguments[0]), max_size=2)
    if origin is tuple:
        return st.lists(strategy(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(strategy(arguments[0]), strategy(arguments[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return st.builds(kind, **{field.name: strategy(field.type) for field in fields})
    return {
        int: st.integers(0, 2**63),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        str: st.text(max_size=5),
        bytes: st.binary(max_size=5),
        types.NoneType: st.none(),
    }[kind]


def encoded_samples() -> dict[str, str]:
    return {kind.__name__: messages.encode(sample(kind)).hex() for kind in TYPES}


def golden_files() -> list[Path]:
    return sorted(GOLDEN.glob("*.json"))


def test_todays_encoding_is_the_recorded_one() -> None:
    current = encoded_samples()
    files = golden_files()
    recorded = json.loads(files[-1].read_text()) if files else {}
    if current != recorded and os.environ.get("MC_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        target = GOLDEN / f"{len(files) + 1:03}.json"
        target.write_text(json.dumps(current, indent=1, sort_keys=True) + "\n")
        recorded = current
    changed = {name for name in current | recorded if current.get(name) != recorded.get(name)}
    assert not changed, (
        f"the wire encoding of {sorted(changed)} changed; if fields were only added, with a default, record it: "
        "MC_GOLDEN=write pytest tests/unit/protocol"
    )


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: path.stem)
def test_bytes_of_every_recorded_state_still_decode(path: Path) -> None:
    by_name = {kind.__name__: kind for kind in TYPES}
    for name, text in json.loads(path.read_text()).items():
        old = bytes.fromhex(text)
        decoded = msgspec.msgpack.decode(old, type=by_name[name])
        raw = msgspec.msgpack.decode(old)
        again = msgspec.msgpack.decode(messages.encode(decoded))
        assert {key: again[key] for key in raw if not isinstance(raw[key], list | dict)} == {
            key: value for key, value in raw.items() if not isinstance(value, list | dict)
        }


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_messages_round_trip(kind: type[Message]) -> None:
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(message=strategy(kind))
    def round_trip(message: Message) -> None:
        assert msgspec.msgpack.decode(messages.encode(message), type=kind) == message

    round_trip()


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_unknown_fields_of_a_newer_peer_are_passed_over(kind: type[Message]) -> None:
    message = sample(kind)
    raw = msgspec.msgpack.decode(messages.encode(message))
    raw["field_of_a_newer_release"] = [1, 2]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=kind) == message


def members(union: Any) -> set[type]:
    return set(typing.get_args(union)) or {union}


def test_every_message_belongs_to_a_union() -> None:
    known: set[type] = set()
    for union in (messages.Request, messages.Reply, messages.Part, messages.Notice, messages.Event):
        known |= members(union)
    assert set(TYPES) == known


def test_tags_are_the_lower_case_names() -> None:
    for kind in TYPES:
        assert kind.__struct_config__.tag == kind.__name__.lower()


@given(payload=st.binary(max_size=200))
def test_other_bytes_never_raise_anything_unexpected(payload: bytes) -> None:
    for decode in (messages.decode_request, messages.decode_incoming, messages.decode_event):
        try:
            decode(payload)
        except (msgspec.MsgspecError, RecursionError):
            continue


def test_records_are_arrays_and_a_shorter_old_one_gets_defaults() -> None:
    assert issubclass(segment.Strided, Record)
    assert msgspec.msgpack.decode(
        msgspec.msgpack.encode([5, 10]), type=segment.Strided
    ) == segment.Strided(offset=5, row_bytes=10)


@pytest.mark.parametrize("family", errors.FAMILIES.values(), ids=lambda family: family.code)
def test_errors_cross_the_wire_as_their_family(family: type[errors.McError]) -> None:
    class Leaf(family):  # type: ignore[valid-type,misc]
        """A leaf travels as its family."""

    sent = to_failure(Leaf("why", retry_after_ms=5))
    received = to_error(msgspec.msgpack.decode(messages.encode(sent), type=failure.Failure))
    assert type(received) is family
    assert (received.message, received.retry_after_ms) == ("why", 5)
    assert type(to_error(failure.Failure(code="newer", message="?"))) is errors.McError


def test_a_refusal_of_a_key_stays_one_and_is_a_refusal_to_who_does_not_know_it() -> None:
    sent = to_failure(failure.Unwelcome("why"))
    assert sent.code == "rejected"
    assert type(to_error(sent)) is failure.Unwelcome


def test_strided_ends_after_its_last_run() -> None:
    rows = segment.Strided(offset=10, row_bytes=4, num_rows=3, stride_bytes=100)
    assert (rows.length, rows.end) == (12, 214)
