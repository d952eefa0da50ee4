"""What every message shares. Fields are added with a default; never renamed, retyped or reused."""

from typing import Final

import msgspec

PROTOCOL_VERSION = 2
"""Raised when an old peer could misread a new message; Hello refuses another one."""


MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoders raise at bytes that are not what they should be; the last where these nest too deep."""


class Message(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower):
    """Root of every closed set. Unknown fields are ignored on the wire, so peers upgrade one by one."""


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value inside messages, many per message: encoded as an array. New fields go at the end, with a default.

    Never part of a cycle, so the collector need not look at it.
    """


class Ok(Message, frozen=True):
    """The reply that says only that it was done."""


class Ping(Message, frozen=True):
    """Answered by every server at once, by the loop itself; carries nothing."""
