"""Queue pairs kept connected for the next transfer: capped per path and in all, the least wanted one evicted."""

import threading
from collections.abc import Callable

from daemons.core.errors import Unavailable
from daemons.transfer.transports.rdma.peer import Endpoint, Path, Peer
from daemons.transfer.transports.rdma.queue_pair import Retries
from daemons.transfer.transports.rdma.sieve import Sieve

_CHECK_S = 0.05


class EndpointPool:
    """Thread safe. An endpoint is leased to one transfer; it comes back drained, or is destroyed."""

    def __init__(self, retries: Retries, *, max_endpoints: int, max_per_path: int) -> None:
        self._retries = retries
        self._max_endpoints = max_endpoints
        self._max_per_path = max_per_path
        self._condition = threading.Condition()
        self._members: Sieve[Endpoint] = Sieve()
        self._num_connecting = 0
        self._free_slots = list(range(max_endpoints))

    def __len__(self) -> int:
        return len(self._members)

    def acquire(self, peer: Peer, path: Path, remaining_s: Callable[[], float]) -> Endpoint:
        """Wait for one until the transfer's time is over; `remaining_s` raises then."""
        while True:
            endpoint = self.try_acquire(peer, path)
            if endpoint is not None:
                return endpoint
            with self._condition:
                self._condition.wait(min(remaining_s(), _CHECK_S))
            if not peer.is_alive():
                raise Unavailable(f"{peer.name} is gone")

    def try_acquire(self, peer: Peer, path: Path) -> Endpoint | None:
        """An idle one, or a new one where the caps allow; None where one must be waited for."""
        with self._condition:
            if path.idle:
                endpoint = path.idle.pop()
                endpoint.is_leased = True
                self._members.visit(endpoint)
                return endpoint
            if path.num_open >= self._max_per_path:
                return None
            victim = None
            if len(self._members) + self._num_connecting >= self._max_endpoints:
                victim = self._members.evict(lambda member: not member.is_leased)
                if victim is None:
                    return None
                victim.path.idle.remove(victim)
                victim.path.num_open -= 1
            path.num_open += 1
            self._num_connecting += 1
        if victim is not None:
            self._destroy(victim)
        return self._connect(peer, path)

    def release(self, endpoint: Endpoint) -> None:
        """Give a drained endpoint back."""
        if endpoint.peer.is_lost:
            self.discard(endpoint)
            return
        with self._condition:
            endpoint.is_leased = False
            endpoint.path.idle.append(endpoint)
            self._condition.notify_all()

    def discard(self, endpoint: Endpoint, *, confirms: bool = False) -> bool:
        """Destroy it: on return nothing posted on it can touch memory on this side.

        With `confirms` it waits for the peer, too; False says that the peer's memory may still be touched.
        """
        with self._condition:
            self._members.remove(endpoint)
            endpoint.path.num_open -= 1
        is_fenced = self._destroy(endpoint, confirms=confirms)
        with self._condition:
            self._condition.notify_all()
        return is_fenced

    def drop_peer(self, peer: Peer) -> None:
        """Destroy what is idle; leased ones go when their transfers notice."""
        with self._condition:
            idle = [endpoint for path in peer.paths for endpoint in path.idle]
            for endpoint in idle:
                endpoint.path.idle.remove(endpoint)
                endpoint.path.num_open -= 1
                self._members.remove(endpoint)
        for endpoint in idle:
            self._destroy(endpoint)

    def _connect(self, peer: Peer, path: Path) -> Endpoint:
        endpoint = None
        try:
            endpoint = peer.connect(path, self._retries)
        finally:
            with self._condition:
                self._num_connecting -= 1
                if endpoint is None:
                    path.num_open -= 1
                    self._condition.notify_all()
                else:
                    endpoint.scratch = self._free_slots.pop()
                    self._members.add(endpoint)
        return endpoint

    def _destroy(self, endpoint: Endpoint, *, confirms: bool = False) -> bool:
        endpoint.queue_pair.close()
        with self._condition:
            self._free_slots.append(endpoint.scratch)
        return endpoint.peer.disconnect(endpoint, confirms=confirms)
