"""The names things go by. Each is a NewType, so that mypy keeps a block hash from being used as a put id."""

import os
import secrets
from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""16 bytes; chained over the parent's, so it names a whole prefix (design section 4)."""

NodeId = NewType("NodeId", str)
"""Chosen by config; unique in a cluster; survives restarts of the process."""

RequestId = NewType("RequestId", str)
PutId = NewType("PutId", bytes)
StageId = NewType("StageId", bytes)
HostId = NewType("HostId", str)
"""Equal for two processes exactly when they may share memory: boot id + IPC and network namespaces."""

Epoch = NewType("Epoch", int)
"""Life of a node's memory: a new one after every start."""

Incarnation = NewType("Incarnation", int)
"""Life of a master: grows with every start; 0 means no master was met yet."""

PublicKey = NewType("PublicKey", str)
"""64 hex digits; names a process that has keys."""


def new_request_id() -> RequestId:
    return RequestId(secrets.token_hex(8))


def new_put_id() -> PutId:
    return PutId(os.urandom(16))


def new_stage_id() -> StageId:
    return StageId(os.urandom(16))


def new_epoch() -> Epoch:
    """Random and positive, so that an old peer's descriptor never fits a restarted process."""
    return Epoch(int.from_bytes(os.urandom(7), "little") | 1)


def short(identifier: bytes | str) -> str:
    """The first eight hex digits, for logs."""
    return identifier.hex()[:8] if isinstance(identifier, bytes) else identifier[:8]
