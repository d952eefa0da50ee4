"""Who proves to be a daemon at a data port: with the right key, at that port, for that nonce, while it is let in."""

import itertools

import pytest

from daemons.core.errors import ProtocolError
from daemons.core.ids import NodeId, PublicKey
from daemons.mc_master.nodes.data_keys import DataKeys
from daemons.protocol.key import AllowedKey, KeyRole
from daemons.protocol.segment import Strided
from daemons.transfer.capability import BadCapability, CapabilityKey, encode_grant
from daemons.transfer.credentials import DATA_PORT, RDMA_CONTROL, NodeKeys, SharedSecret

NONCE = bytes(range(16))
PLACE = b"10.0.0.1 7711"
numbers = itertools.count(1)


def key(role: KeyRole) -> AllowedKey:
    number = next(numbers)
    return AllowedKey(public=PublicKey(f"{number:064x}"), node=NodeId(f"n{number}"), role=role)


class Cluster:
    """What a master with these keys on its list gives to their owners."""

    def __init__(self, *listed: AllowedKey) -> None:
        self.listed = list(listed)
        self.master = DataKeys(b"m" * 32)
        self.nodes = {each.public: NodeKeys(each.public) for each in listed}
        self.tell()

    def tell(self) -> None:
        for each in self.listed:
            told = self.master.message(self.listed, each)
            self.nodes[each.public].replace(told)

    def is_let_in(self, peer: AllowedKey, owner: AllowedKey, place: bytes = PLACE) -> bool:
        mine, theirs = self.nodes[peer.public], self.nodes[owner.public]
        proof = mine.prove(DATA_PORT, NONCE, theirs.shown(), PLACE)
        return theirs.verify(DATA_PORT, NONCE, proof, place) == peer.public


def test_daemons_prove_themselves_to_each_other() -> None:
    cache, decode = key("cachenode"), key("decode")
    cluster = Cluster(cache, decode)
    assert cluster.is_let_in(decode, cache)
    assert cluster.is_let_in(cache, decode)


def test_a_proof_is_no_good_at_another_port_for_another_purpose_or_nonce() -> None:
    cache, decode = key("cachenode"), key("decode")
    cluster = Cluster(cache, decode)
    assert not cluster.is_let_in(decode, cache, b"10.0.0.9 7711")
    mine, theirs = cluster.nodes[decode.public], cluster.nodes[cache.public]
    proof = mine.prove(DATA_PORT, NONCE, theirs.shown(), PLACE)
    assert theirs.verify(RDMA_CONTROL, NONCE, proof, PLACE) is None
    assert theirs.verify(DATA_PORT, bytes(16), proof, PLACE) is None
    shared = SharedSecret(b"s" * 16)
    proof = shared.prove(DATA_PORT, NONCE, b"", PLACE)
    assert shared.verify(DATA_PORT, NONCE, proof, PLACE) == ""
    assert shared.verify(DATA_PORT, NONCE, proof, b"10.0.0.9 7711") is None


def test_nobody_proves_to_be_another_node() -> None:
    """With all that it was given."""
    cache, decode, mole = key("cachenode"), key("decode"), key("decode")
    cluster = Cluster(cache, decode, mole)
    proof = cluster.nodes[mole.public].prove(DATA_PORT, NONCE, bytes.fromhex(cache.public), PLACE)
    claimed = bytes.fromhex(decode.public) + proof[32:]
    assert cluster.nodes[cache.public].verify(DATA_PORT, NONCE, claimed, PLACE) is None


@pytest.mark.parametrize("role", ["gateway", "admin", "client", "master"])
def test_other_roles_get_no_data_keys(role: KeyRole) -> None:
    cache, other = key("cachenode"), key(role)
    cluster = Cluster(cache, other)
    told = cluster.master.message(cluster.listed, other)
    assert (told.own, told.towards, told.grants) == (b"", {}, b"")
    with pytest.raises(ProtocolError, match="gave no data key"):
        cluster.is_let_in(other, cache)
    assert not cluster.nodes[cache.public].admits(other.public)


def test_a_revoked_daemon_is_out_with_the_keys_it_has() -> None:
    cache, decode = key("cachenode"), key("decode")
    cluster = Cluster(cache, decode)
    cluster.listed.remove(decode)
    cluster.tell()
    assert not cluster.is_let_in(decode, cache)
    with pytest.raises(ProtocolError):
        cluster.is_let_in(cache, decode)


def test_who_was_told_before_is_told_only_of_what_is_new() -> None:
    cache, decode = key("cachenode"), key("decode")
    cluster = Cluster(cache)
    cluster.listed.append(decode)
    cluster.nodes[decode.public] = NodeKeys(decode.public)
    told = cluster.master.message(cluster.listed, cache, {decode.public})
    assert set(told.towards) == {decode.public}
    cluster.nodes[cache.public].replace(told)
    cluster.nodes[decode.public].replace(cluster.master.message(cluster.listed, decode))
    assert cluster.is_let_in(cache, decode)
    assert cluster.is_let_in(decode, cache)


def test_another_life_of_the_master_gives_out_the_same_keys_and_other_grants() -> None:
    cache = key("cachenode")
    first, second = (DataKeys(b"m" * 32).message([cache], cache) for _ in range(2))
    assert (first.own, first.towards) == (second.own, second.towards)
    assert first.grants != second.grants


def test_grants_of_before_a_revocation_open_nothing() -> None:
    cache = key("cachenode")
    master = DataKeys(b"m" * 32)
    owner = CapabilityKey(7)
    owner.renew(master.message([cache], cache).grants)
    whole = Strided(offset=0, row_bytes=10, num_rows=1, stride_bytes=10)
    grant = CapabilityKey(7, master.grant_key(cache.public)).grant(1, [whole], "read", 5.0)
    owner.check(encode_grant(grant), 1, "read", [whole], None)
    master.renew_grants()
    owner.renew(master.message([cache], cache).grants)
    with pytest.raises(BadCapability):
        owner.check(encode_grant(grant), 1, "read", [whole], None)
