"""Block hashes: H(parent || little-endian u32 tokens), root = H(namespace); 128 bits of BLAKE2b.

A cryptographic hash, since a collision would put one tenant's KV under another's prompt (design section 4).
Full blocks only: the tail of a prompt has no name.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from daemons.core.ids import BlockHash

HASH_BYTES = 16


def root_hash(namespace: bytes) -> BlockHash:
    """Parent of the first block."""
    return BlockHash(blake2b(namespace, digest_size=HASH_BYTES, person=b"mc-root").digest())


def tenant_namespace(namespace: bytes, tenant: str) -> bytes:
    """The namespace one tenant's chains start from; the empty tenant uses the model's own."""
    if not tenant:
        return namespace
    return blake2b(
        namespace + tenant.encode(), digest_size=HASH_BYTES, person=b"mc-tenant"
    ).digest()


def block_hashes(namespace: bytes, tokens: Sequence[int], block_tokens: int) -> list[BlockHash]:
    """Hashes of the full blocks of `tokens`, in order; about 1 us a block."""
    packed = np.asarray(tokens, dtype="<u4").tobytes()
    block_bytes = 4 * block_tokens
    parent: bytes = root_hash(namespace)
    hashes = []
    for start in range(0, len(packed) - block_bytes + 1, block_bytes):
        parent = blake2b(
            parent + packed[start : start + block_bytes], digest_size=HASH_BYTES
        ).digest()
        hashes.append(BlockHash(parent))
    return hashes


def name_prompt(
    hashes: Sequence[BlockHash], tokens: Sequence[int], namespace: bytes, block_tokens: int
) -> bool:
    """Whether these are the hashes of this prompt's first blocks: KV under other names is another prompt's."""
    return list(hashes) == block_hashes(
        namespace, tokens[: len(hashes) * block_tokens], block_tokens
    )
