"""The socket of a channel, and whether a connection may be made at all: what no state of the channel decides."""

from typing import Final

import zmq

from daemons.core.ids import PublicKey
from daemons.protocol.address import is_loopback
from daemons.rpc.framing import MAX_MESSAGE_BYTES
from daemons.rpc.keys import Identity, use_keys

MONITORED: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
)
"""What a channel wants to hear of its socket."""
GET_KEYS: Final = (
    "`mcctl keys generate NODE --role ROLE --authorize` on the master's host makes one; set `security.key_file` and "
    "`security.master_key` (mcctl, whose role is admin: --key-file and --master-key), see mc-deploy(7), Keys"
)
NO_KEYS: Final = f"asks for keys, and this process has none: {GET_KEYS}"


def new_dealer(
    context: "zmq.Context[zmq.Socket[bytes]]",
    identity: Identity | None,
    server_key: PublicKey | None,
) -> "zmq.Socket[bytes]":
    """Not connected yet. It queues nothing for a peer that is not there, and little for one that does not read."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 200)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.setsockopt(zmq.SNDHWM, 20_000)
    socket.setsockopt(zmq.RCVHWM, 20_000)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    if server_key is not None and identity is not None:
        use_keys(socket, identity.pair, server_key)
    return socket


def keys_missing(endpoint: str, identity: Identity | None, server_key: PublicKey | None) -> str:
    """Why there is no safe connection to this endpoint, or ""."""
    if server_key is None:
        if identity is None or is_loopback(endpoint):
            return ""
        return (
            f"{endpoint} is another host's, but its public key is not known: set "
            "`security.master_key` (mcctl: --master-key), or `security.key_file` at that node"
        )
    return "" if identity is not None else f"{endpoint} {NO_KEYS}"
