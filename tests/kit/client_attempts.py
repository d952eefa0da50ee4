"""`python -m kit.client_attempts KEY_FILE MASTER OWN FOREIGN REGION`: what a client's key can do from here.

It uses objects of the namespace OWN as an application does, and then tries, with messages of its own making, to get at
the object `a` of the namespace FOREIGN and at the memory of a cache node. Prints what came of each as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from daemons.client.identity import open_client_identity
from daemons.client.objects.format import (
    PIECE_BYTES,
    Footer,
    ValueType,
    chunk_meta,
    object_meta,
    pack_footer,
)
from daemons.client.objects.sessions import Sessions
from daemons.client.objects.steps import ask_master, ask_nodes
from daemons.client.objects.store import Store
from daemons.core.errors import McError
from daemons.core.ids import NodeId, new_put_id, new_stage_id
from daemons.core.units import MIB
from daemons.protocol.base import Ok
from daemons.protocol.block import BadReplica, Put, PutBlock, PutReply
from daemons.protocol.lookup import Locate, LocateReply
from daemons.protocol.name_hash import name_key
from daemons.protocol.objects import NameToReserve, ReserveNames, ReserveNamesReply
from daemons.protocol.replication import AwaitReplicas, AwaitReplicasReply
from daemons.protocol.segment import RegionRef, Source
from daemons.protocol.tiers import Stage, StageReply
from daemons.store.directory.names import COUNTER_BITS
from daemons.transfer import contiguous
from kit.data_reader import region_of

HERE = "10.251.0.2"
NUM_BYTES = 4096


class Attempts:
    def __init__(self, sessions: Sessions, own: bytes, foreign: bytes, region: RegionRef) -> None:
        self.sessions, self.own, self.region = sessions, own, region
        self.foreign, self.key = foreign, name_key(foreign, b"a")
        wanted = NameToReserve(name=b"stolen", value_bytes=NUM_BYTES)
        reserved = sessions.run(
            ask_master(ReserveNames(namespace=own, names=[wanted]), ReserveNamesReply, 5.0)
        )
        self.version = reserved.names[0].version
        self.node = reserved.targets[0].control

    def locate(self) -> Any:
        reply = self.sessions.run(ask_master(Locate(hashes=[self.key]), LocateReply, 5.0))
        return len(reply.unpack()[0])

    def wait_for_it(self) -> Any:
        message = AwaitReplicas(hashes=[self.key], versions=[1], count=1)
        return self.sessions.run(ask_master(message, AwaitReplicasReply, 5.0)).counts

    def report_it(self) -> Any:
        message = BadReplica(hash=self.key, node=NodeId("near"), why="")
        return type(self.sessions.run(ask_master(message, Ok, 5.0))).__name__

    def stage(self) -> Any:
        message = Stage(stage_id=new_stage_id(), hashes=[self.key], wants_grants=True)
        reply = self.ask_node(message)
        assert isinstance(reply, StageReply)
        return len([at for at in reply.locations if at is not None]) + len(reply.grants)

    def put_theirs(self) -> Any:
        return self.put(self.block(object_meta(self.foreign, b"a", NUM_BYTES)))

    def put_a_chunk_of_theirs(self) -> Any:
        meta = chunk_meta(self.foreign, self.key, self.version, 0)
        return self.put(self.block(replace(meta, namespace=self.own)))

    def put_kv(self) -> Any:
        meta = object_meta(self.own, b"", NUM_BYTES)
        return self.put(self.block(replace(meta, name=b"", model="llama")))

    def put_from_a_nodes_memory(self) -> Any:
        return self.put(self.block(object_meta(self.own, b"stolen", NUM_BYTES)))

    def put_of_a_later_master(self) -> Any:
        """Reported to the master that there is, it would end it."""
        return self.put_of_version(self.version + (1 << COUNTER_BITS))

    def put_of_a_version_of_no_master(self) -> Any:
        return self.put_of_version((1 << 64) - 1)

    def put_of_version(self, version: int) -> Any:
        block = self.block(object_meta(self.own, b"stolen", NUM_BYTES))
        return self.put(replace(block, version=version))

    def block(self, meta: Any) -> PutBlock:
        return PutBlock(
            meta=meta,
            source=Source(region=self.region, ranges=contiguous(0, NUM_BYTES)),
            num_layers=1,
            version=self.version,
            piece_bytes=PIECE_BYTES,
            tail=pack_footer(Footer(NUM_BYTES, 0, ValueType())),
            object_name=b"a",
        )

    def put(self, block: PutBlock) -> Any:
        reply = self.ask_node(Put(put_id=new_put_id(), blocks=[block]))
        assert isinstance(reply, PutReply)
        return f"{reply.results[0]}: {reply.why}"

    def ask_node(self, message: Any) -> Any:
        [reply] = self.sessions.run(ask_nodes([(self.node, message)], 5.0))
        if isinstance(reply, McError):
            raise reply
        return reply


def use_own(store: Store) -> list[bool]:
    large = bytes(range(256)) * (3 * MIB // 256)
    return [
        store.put("small", b"mine") > 0,
        store.put("large", large) > 0,
        store.get("small") == b"mine",
        store.get("large") == large,
        {each.name for each in store.list()} == {b"small", b"large"},
        store.exists("small") == "present",
        store.delete("small"),
        store.get("small") is None,
    ]


def outcome(attempt: Any) -> Any:
    try:
        return attempt()
    except McError as error:
        return type(error).__name__


def run(key_file: Path, master: str, own: str, foreign: str, region: RegionRef) -> dict[str, Any]:
    done: dict[str, Any] = {}
    with Store(master, namespace=own, key_file=key_file, bind_host=HERE) as store:
        done["own"] = use_own(store)
    with Store(master, namespace=foreign, key_file=key_file, bind_host=HERE) as store:
        done["get"] = outcome(lambda: store.get("a"))
        done["put"] = outcome(lambda: store.put("a", b"forged"))
        done["delete"] = outcome(lambda: store.delete("a"))
        done["exists"] = outcome(lambda: store.exists("a"))
        done["list"] = outcome(lambda: list(store.list()))
        done["namespaces"] = outcome(store.namespaces)
    sessions = Sessions(master, open_client_identity(key_file))
    attempts = Attempts(sessions, own.encode(), foreign.encode(), region)
    for name in (
        "locate",
        "wait_for_it",
        "report_it",
        "stage",
        "put_theirs",
        "put_a_chunk_of_theirs",
        "put_kv",
        "put_from_a_nodes_memory",
        "put_of_a_later_master",
        "put_of_a_version_of_no_master",
    ):
        done[name] = outcome(getattr(attempts, name))
    sessions.close()
    return done


if __name__ == "__main__":
    key_file, master, own, foreign, region = sys.argv[1:]
    done = run(Path(key_file), master, own, foreign, region_of(json.loads(region)))
    sys.stdout.write(json.dumps(done) + "\n")
