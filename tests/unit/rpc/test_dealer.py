"""What a channel's socket does with a peer that is not there, and where no safe connection can be made."""

import socket
from collections.abc import Callable, Iterator

import pytest
import zmq

from daemons.core.ids import PublicKey
from daemons.rpc import Identity, KeyPair
from daemons.rpc.dealer import keys_missing, new_dealer
from daemons.rpc.framing import MAX_MESSAGE_BYTES

HERE = "tcp://127.0.0.1:7"
THERE = "tcp://10.1.2.3:7"
SERVER = PublicKey("ab" * 32)


Dealer = Callable[[Identity | None, PublicKey | None], "zmq.Socket[bytes]"]


@pytest.fixture
def dealer() -> Iterator[Dealer]:
    """Makes sockets that are closed after the test."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[zmq.Socket[bytes]] = []

    def make(identity: Identity | None, server_key: PublicKey | None) -> "zmq.Socket[bytes]":
        made.append(new_dealer(context, identity, server_key))
        return made[-1]

    yield make
    for each in made:
        each.close(0)
    context.term()


@pytest.mark.parametrize(
    ("endpoint", "has_own_key", "server_key", "why_not"),
    [
        (HERE, False, None, ""),
        (THERE, False, None, ""),
        (HERE, True, None, ""),
        (HERE, True, SERVER, ""),
        (THERE, True, SERVER, ""),
        (THERE, True, None, "security.master_key"),
        (HERE, False, SERVER, "security.key_file"),
        (THERE, False, SERVER, "security.key_file"),
    ],
)
def test_who_has_a_key_talks_to_other_hosts_by_their_key_alone(
    endpoint: str, has_own_key: bool, server_key: PublicKey | None, why_not: str
) -> None:
    identity = Identity(KeyPair.generate()) if has_own_key else None
    said = keys_missing(endpoint, identity, server_key)
    assert (said == "") == (why_not == "")
    assert why_not in said
    assert not said or said.startswith(endpoint)


def test_nothing_is_queued_for_a_peer_that_is_not_there(dealer: Dealer) -> None:
    with socket.socket() as silent:  # bound, so that the port is nobody else's, and not listening
        silent.bind(("127.0.0.1", 0))
        lonely = dealer(None, None)
        lonely.connect(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(zmq.Again):
            lonely.send(b"late", zmq.NOBLOCK)


def test_no_peer_makes_it_take_more_than_a_message(dealer: Dealer) -> None:
    assert dealer(None, None).getsockopt(zmq.MAXMSGSIZE) == MAX_MESSAGE_BYTES


def test_the_handshake_is_encrypted_where_both_keys_are_known_and_only_there(
    dealer: Dealer,
) -> None:
    own, server = Identity(KeyPair.generate()), KeyPair.generate().public
    mechanisms = [
        dealer(identity, key).getsockopt(zmq.MECHANISM)
        for identity in (own, None)
        for key in (server, None)
    ]
    assert mechanisms == [zmq.CURVE, zmq.NULL, zmq.NULL, zmq.NULL]
