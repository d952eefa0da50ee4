"""What of a put is refused from its description alone, before a slot is taken or a byte is read."""

from typing import Final

from daemons.core.errors import ProtocolError, Unavailable
from daemons.core.ids import Incarnation
from daemons.protocol.block import (
    MAX_INLINE_BYTES,
    MAX_REPLICAS,
    MAX_TAIL_BYTES,
    Put,
    PutBlock,
)
from daemons.protocol.name_hash import MAX_NAME_BYTES, name_key
from daemons.protocol.prefix_hash import HASH_BYTES
from daemons.store.directory.names import incarnation_of, may_be_given
from daemons.store.segment.seal import MAX_LAYERS, is_shape

_MAX_NUMBER: Final = 1 << 31
_MAX_NAME: Final = 256
_NOT_JOINED_MS: Final = 50
"""A node joins a new master within a few beats."""


def refusal(block: PutBlock) -> str | None:
    """Why a block cannot be pulled at all, from its description alone."""
    meta, ranges = block.meta, block.source.ranges
    if len(meta.hash) != HASH_BYTES or len(meta.parent) != HASH_BYTES:
        return f"hashes have {HASH_BYTES} bytes"
    # The master refuses a whole report for one such number, so it must not get into the index.
    if not (0 <= meta.depth < _MAX_NUMBER and 0 <= meta.num_tokens < _MAX_NUMBER):
        return f"depth {meta.depth} or {meta.num_tokens} tokens out of range"
    if max(len(meta.model), len(meta.tenant), len(meta.namespace)) > _MAX_NAME:
        return f"a name is longer than {_MAX_NAME}"
    if not 0 < block.num_layers <= MAX_LAYERS:
        return f"{block.num_layers} layers"
    if not 0 <= block.wanted <= MAX_REPLICAS:
        return f"{block.wanted} replicas wanted"
    if block.piece_bytes or block.version or meta.name:
        return _object_refusal(block)
    if ranges.num_rows != 2 * block.num_layers or ranges.row_bytes <= 0:
        return f"{ranges.num_rows} rows of {ranges.row_bytes} bytes for {block.num_layers} layers"
    if block.checksums is not None and len(block.checksums) != block.num_layers:
        return f"{len(block.checksums)} checksums for {block.num_layers} layers"
    if block.tail or meta.value_bytes:
        # What lies behind its layers nobody would write, nor hash: it is what the slot held before.
        return f"{len(block.tail)} bytes behind its layers, or a value of {meta.value_bytes} bytes, are of objects"
    return None


def payload_bytes(block: PutBlock) -> int:
    """Of the block once it is here."""
    return block.source.ranges.length + len(block.tail)


def check_given_out(put: Put, incarnation: Incarnation) -> None:
    """Whoever reports a version of a later master ends the one there is, so nobody may make one up.

    Raises ProtocolError, and Unavailable: a client may also have heard of a master before this node has.
    """
    versions = [block.version for block in put.blocks if block.version]
    made_up = next((each for each in versions if not may_be_given(each)), None)
    if made_up is not None:
        raise ProtocolError(
            f"no master gives out version {made_up}; reserve the name at the master"
        )
    newest = incarnation_of(max(versions, default=0))
    if newest > incarnation:
        raise Unavailable(
            f"a version of master incarnation {newest}, and this node has joined {incarnation}; put it again",
            retry_after_ms=_NOT_JOINED_MS,
        )


def _object_refusal(block: PutBlock) -> str | None:
    meta, ranges = block.meta, block.source.ranges
    if not 0 < block.version < 1 << 64 or not 0 <= meta.value_bytes < 1 << 62:
        return f"version {block.version} or a value of {meta.value_bytes} bytes is out of range"
    if len(meta.name) > MAX_NAME_BYTES:
        return f"a name of {len(meta.name)} bytes; {MAX_NAME_BYTES} are the most"
    if meta.name and meta.hash != name_key(meta.namespace, meta.name):
        return "its key is not that of its name"
    max_tail = MAX_TAIL_BYTES if ranges.row_bytes else MAX_INLINE_BYTES + MAX_TAIL_BYTES
    if ranges.row_bytes < 0 or ranges.num_rows != 1 or len(block.tail) > max_tail:
        return f"{ranges.num_rows} rows of {ranges.row_bytes} bytes and {len(block.tail)} behind"
    length = payload_bytes(block)
    is_piece = 0 < block.piece_bytes < _MAX_NUMBER
    if not is_piece or not is_shape(length, block.num_layers, block.piece_bytes):
        return f"{length} bytes are not {block.num_layers} pieces of {block.piece_bytes}"
    return None
