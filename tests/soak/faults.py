"""What is done to the pool, one fault after the other, chosen by a seed; each names what it did."""

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

from kit.daemon import Daemon

from daemons.client.cluster import ClusterClient
from daemons.client.segments import NodeSegments
from daemons.core.errors import McError
from daemons.core.ids import NodeId
from daemons.protocol.block import BlockFilter
from soak.world import World, cut, damage, largest_bucket

_TORN_RECORDS = 8
"""That a tear costs at most."""


class Faults(threading.Thread):
    """`num_damaged` counts what flipped bytes and torn files may have cost: all else may not be lost."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(name="soak-faults", daemon=True)
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.num_damaged = 0
        self.ends = threading.Event()
        self._world = world
        self._random = random.Random(seed)  # repeatable, not secret
        self._kinds: list[tuple[Callable[[], None], int]] = [
            (self._kill_node, 4),
            (self._kill_master, 2),
            (self._stop_node, 3),
            (self._stop_master, 1),
            (self._restart_node, 2),
            (self._damage_disk, 1),
            (self._lose_state, 1),
            (self._tear_index, 1),
            (self._tear_bucket, 1),
            (self._fill_disk, 1),
            (self._change_segments, 1),
            (self._drain, 1),
            (self._clear_blocks, 1),
        ]

    def run(self) -> None:
        """At most one node is away at a time: two copies of everything are all there is."""
        kinds, weights = zip(*self._kinds, strict=True)
        while not self.ends.wait(self._random.uniform(0.5, 2.0)):
            kind = self._random.choices(kinds, weights)[0]
            try:
                kind()
            except (AssertionError, McError) as error:
                self.errors.append(f"{kind.__name__}: {error}")
                return
            self.counts[kind.__name__.removeprefix("_")] += 1

    def _node(self) -> tuple[int, Daemon]:
        number = self._random.randrange(len(self._world.nodes))
        return number, self._world.nodes[number]

    def _kill_node(self) -> None:
        _, node = self._node()
        node.kill()
        time.sleep(self._random.uniform(0.0, 3.0))
        self._world.heal()

    def _restart_node(self) -> None:
        _, node = self._node()
        node.stop()
        self._world.heal()

    def _kill_master(self) -> None:
        self._world.master.kill()
        time.sleep(self._random.uniform(0.0, 2.0))
        self._world.heal()

    def _stop_node(self) -> None:
        _, node = self._node()
        node.send(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.2, 5.0))
        self._world.heal()

    def _stop_master(self) -> None:
        self._world.master.send(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.2, 3.0))
        self._world.heal()

    def _damage_disk(self) -> None:
        number, _ = self._node()
        self.num_damaged += damage(self._world.ssd(number), self._random.randrange(1 << 40))

    def _lose_state(self) -> None:
        """The master's disk: it must come back above all that was before."""
        self._world.master.kill()
        shutil.rmtree(self._world.state)
        self._world.heal()

    def _tear_index(self) -> None:
        """The newest records of a node's memory are gone, the last one in the middle."""
        number, node = self._node()
        node.kill()
        self.num_damaged += _TORN_RECORDS * cut(
            self._world.index(number), self._random.randrange(1, 400)
        )
        self._world.heal()

    def _tear_bucket(self) -> None:
        number, node = self._node()
        node.kill()
        bucket = largest_bucket(self._world.ssd(number))
        self.num_damaged += _TORN_RECORDS * cut(bucket, self._random.randrange(1, 100_000))
        self._world.heal()

    def _fill_disk(self) -> None:
        """For a while; then there is room again."""
        if self._world.small_disk is None:
            return
        filler = self._world.small_disk / "filler"
        fd = os.open(filler, os.O_CREAT | os.O_WRONLY)
        try:
            with contextlib.suppress(OSError):
                while os.write(fd, bytes(1 << 20)):
                    pass
            time.sleep(self._random.uniform(0.5, 5.0))
        finally:
            os.close(fd)
            filler.unlink()

    def _change_segments(self) -> None:
        """One more, and away with it once it has blocks, or with what an earlier one left."""
        number, _ = self._node()
        wait_s = self._random.uniform(0.0, 4.0)
        with contextlib.suppress(McError):
            segments = NodeSegments(self._control(number), 5.0)
            if len(segments.states()) < 3:
                segments.add(16 << 20)
            time.sleep(wait_s)
            for state in segments.states()[1:]:
                segments.remove(state.number)

    def _drain(self) -> None:
        number, _ = self._node()
        node = NodeId(f"node-{number}")
        wait_s = self._random.uniform(0.0, 4.0)
        with ClusterClient(self._world.endpoint, 20.0) as cluster:
            with contextlib.suppress(McError):
                cluster.drain_node(node, is_draining=True)
                time.sleep(wait_s)
            self._world.heal()
            cluster.drain_node(node, is_draining=False)

    def _clear_blocks(self) -> None:
        """Those of the model, no objects."""
        with ClusterClient(self._world.endpoint, 5.0) as cluster, contextlib.suppress(McError):
            cluster.clear_blocks(BlockFilter(model="soak"))

    def _control(self, number: int) -> str:
        with ClusterClient(self._world.endpoint, 5.0) as cluster:
            nodes = {each.node.node: each.node.control for each in cluster.nodes().nodes}
        return nodes[NodeId(f"node-{number}")]
