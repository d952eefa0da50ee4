"""What is done to the pool, one fault after the other, chosen by a seed; each names what it did."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

from kit.daemon import Daemon

from soak.world import World, damage


class Faults(threading.Thread):
    """`num_damaged` counts flipped bytes: what they hit may be lost, all else may not."""

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
        ]

    def run(self) -> None:
        """At most one node is away at a time: two copies of everything are all there is."""
        kinds, weights = zip(*self._kinds, strict=True)
        while not self.ends.wait(self._random.uniform(0.5, 2.0)):
            kind = self._random.choices(kinds, weights)[0]
            try:
                kind()
            except AssertionError as error:
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
