"""Keys of named objects: H(namespace || name), and of their chunks: H(key || version || index). Domains of their own.

A chunk's key holds the version, so that the chunks of two versions of one name never mix.
"""

import struct
from hashlib import blake2b
from typing import Final

from daemons.core.ids import BlockHash
from daemons.protocol.prefix_hash import HASH_BYTES

MAX_NAME_BYTES: Final = 256
_LENGTH = struct.Struct("<Q")
_CHUNK = struct.Struct("<QQ")
_NAME = blake2b(digest_size=HASH_BYTES, person=b"mc-name")
_CHUNK_OF = blake2b(digest_size=HASH_BYTES, person=b"mc-chunk")


def name_key(namespace: bytes, name: bytes) -> BlockHash:
    """The namespace's length is hashed too: no two pairs run into each other."""
    digest = _NAME.copy()
    digest.update(_LENGTH.pack(len(namespace)) + namespace + name)
    return BlockHash(digest.digest())


def chunk_key(key: BlockHash, version: int, index: int) -> BlockHash:
    digest = _CHUNK_OF.copy()
    digest.update(key + _CHUNK.pack(version, index))
    return BlockHash(digest.digest())
