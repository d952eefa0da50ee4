"""Getting blocks from where they are located, and putting them; bytes are verified where they arrive.

A location may be old: its lease ended, its slot was reused, its node is gone. The seal checksum in it is what makes a
read safe: the trailer is checked against it, and every layer against the trailer. What fails is a miss.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from daemons.core.errors import McError, TransferError
from daemons.core.ids import new_put_id
from daemons.protocol.block import BlockLocation, Put, PutBlock, PutReply
from daemons.protocol.segment import Grant, RegionGrant, RegionRef
from daemons.rpc import SyncClient
from daemons.store.runs import BlockRun, runs_of
from daemons.store.seal import BadSeal, Trailer, parse_trailer, row_checksums
from daemons.transfer import ByteArray, Read, ReadBatch, TransferEngine
from daemons.transfer.capability import MAX_RANGES

LayerTarget = tuple[ByteArray, ByteArray]
"""Writable bytes for the k rows and the v rows of one layer: block i's row at i * row_bytes."""


class BlockReader:
    """Reads runs of blocks. Thread safe; one per process is enough."""

    def __init__(self, engine: TransferEngine) -> None:
        self._engine = engine

    def open(
        self,
        locations: Sequence[BlockLocation],
        *,
        grants: Sequence[RegionGrant] = (),
        timeout_s: float = 5.0,
    ) -> "OpenedBlocks":
        """Read and check the trailers. `num_good` of the result are there, in order, and of one shape.

        `grants` are those of the reply that named the locations, all or the first of them; a daemon needs none.
        """
        return OpenedBlocks(self._engine, locations, grants, timeout_s)

    def read_block(self, location: BlockLocation, *, timeout_s: float = 5.0) -> bytes | None:
        """The verified payload of one block; None is a miss."""
        opened = self.open([location], timeout_s=timeout_s)
        if not opened.num_good:
            return None
        payload = np.empty(location.length, np.uint8)
        rows = payload.reshape(2 * location.num_layers, opened.row_bytes)
        targets = [(rows[2 * layer], rows[2 * layer + 1]) for layer in range(location.num_layers)]
        good = opened.read_layers(0, targets, 1, timeout_s=timeout_s)
        return payload.tobytes() if good else None


class OpenedBlocks:
    """Located blocks whose trailers were verified; `num_good` only shrinks. One thread at a time."""

    def __init__(
        self,
        engine: TransferEngine,
        locations: Sequence[BlockLocation],
        grants: Sequence[RegionGrant],
        timeout_s: float,
    ) -> None:
        self.locations = _of_one_shape(locations)
        self.num_good = len(self.locations)
        self.num_layers = self.locations[0].num_layers if self.locations else 0
        self.row_bytes = self.locations[0].length // (2 * self.num_layers) if self.locations else 0
        self.bad: list[tuple[BlockLocation, str]] = []
        """Replicas whose bytes did not verify, for BadReplica: the node checks before it drops one."""
        self.unreachable: list[tuple[BlockLocation, str]] = []
        """Replicas that could not be read; says nothing about their bytes."""
        self._engine = engine
        self._runs = list(runs_of(self.locations))
        self._grants = _grants_of(self._runs, grants)
        self._trailers: list[Trailer] = []
        self._open(timeout_s)

    def read_layers(
        self,
        first: int,
        targets: Sequence[LayerTarget],
        num_blocks: int,
        *,
        timeout_s: float = 5.0,
    ) -> int:
        """Layers [first, first + len(targets)) of the first `num_blocks`; returns how many of those are good.

        What lies in the targets behind the good ones is garbage. About a MiB a call keeps the bytes in the
        CPU's cache while they are verified.
        """
        if not 0 <= first <= first + len(targets) <= self.num_layers:
            raise TransferError(f"layers {first}..{first + len(targets)} of {self.num_layers}")
        wanted = min(num_blocks, self.num_good)
        self._fetch(self._layer_reads(first, targets, wanted), timeout_s)
        for index, (k_rows, v_rows) in enumerate(targets):
            self._verify(first + index, k_rows, v_rows, min(wanted, self.num_good))
        return min(wanted, self.num_good)

    def read_layer(
        self, layer: int, k_rows: ByteArray, v_rows: ByteArray, *, timeout_s: float = 5.0
    ) -> int:
        """One layer of all good blocks; returns how many are good after it."""
        return self.read_layers(layer, [(k_rows, v_rows)], self.num_good, timeout_s=timeout_s)

    def _open(self, timeout_s: float) -> None:
        if not self.locations:
            return
        size, payload = self.locations[0].trailer_bytes, self.locations[0].length
        packed = np.empty(size * len(self.locations), np.uint8)
        self._fetch(
            (
                (run, Read.into(run.rows(payload, size, run.num_blocks), packed, run.first * size))
                for run in self._runs
            ),
            timeout_s,
        )
        for index in range(self.num_good):
            location = self.locations[index]
            try:
                trailer = parse_trailer(
                    packed[index * size : (index + 1) * size].data,
                    location.seal_checksum,
                    location.hash,
                )
            except BadSeal as error:
                self._miss(index, error.message)
                return
            if (trailer.length, trailer.num_layers) != (payload, self.num_layers):
                self._miss(index, "the trailer is of a block of another shape")
                return
            self._trailers.append(trailer)

    def _layer_reads(
        self, first: int, targets: Sequence[LayerTarget], num_blocks: int
    ) -> Iterator[tuple[BlockRun, Read]]:
        row = self.row_bytes
        for run in self._runs:
            count = min(run.num_blocks, num_blocks - run.first)
            if count <= 0:
                return
            start = 2 * first * row
            for target in targets:
                for rows in target:
                    yield run, Read.into(run.rows(start, row, count), rows, run.first * row)
                    start += row

    def _fetch(self, reads: Iterator[tuple[BlockRun, Read]], timeout_s: float) -> None:
        """One batch a region, in the order of the blocks; a failed one ends the good blocks where it starts."""
        batches: list[tuple[int, RegionRef, Grant | None, list[Read]]] = []
        for run, read in reads:
            grant = self._grants.get(run.first)
            if not batches or batches[-1][1] != run.region or batches[-1][2] is not grant:
                batches.append((run.first, run.region, grant, []))
            batches[-1][3].append(read)
        for first, region, grant, of_region in batches:
            if first >= self.num_good:
                return
            try:
                self._engine.run(
                    ReadBatch(region, of_region, timeout_s=timeout_s, capability=grant)
                )
            except McError as error:
                self.num_good = first
                self.unreachable.append((self.locations[first], error.message))
                return

    def _verify(self, layer: int, k_rows: ByteArray, v_rows: ByteArray, num_blocks: int) -> None:
        found = row_checksums(k_rows.data, v_rows.data, self.row_bytes, num_blocks)
        for index, checksum in enumerate(found):
            if checksum != self._trailers[index].checksums[layer]:
                self._miss(index, f"layer {layer} does not match its checksum")
                return

    def _miss(self, index: int, why: str) -> None:
        self.num_good = index
        self.bad.append((self.locations[index], why))


def put_blocks(client: SyncClient, blocks: Sequence[PutBlock], timeout_s: float = 15.0) -> PutReply:
    """Offer blocks to one cache node and wait until it has pulled them; their bytes must stay until then."""
    reply = client.request(Put(put_id=new_put_id(), blocks=list(blocks)), timeout_s)
    assert isinstance(reply, PutReply)
    return reply


def _of_one_shape(locations: Sequence[BlockLocation]) -> list[BlockLocation]:
    """The leading ones that agree with the first and are possible at all."""
    good: list[BlockLocation] = []
    for location in locations:
        shape = (location.length, location.num_layers, location.trailer_bytes)
        if good and shape != (good[0].length, good[0].num_layers, good[0].trailer_bytes):
            break
        if location.num_layers <= 0 or location.length <= 0 or location.trailer_bytes <= 0:
            break
        if location.length % (2 * location.num_layers):
            break
        good.append(location)
    return good


def _grants_of(runs: Sequence[BlockRun], grants: Sequence[RegionGrant]) -> dict[int, Grant]:
    """For the first block of each run, the grant that opens it: each has room for so many runs of its region."""
    by_region: dict[tuple[int, int], list[Grant]] = {}
    for each in grants:
        by_region.setdefault((each.epoch, each.region_id), []).append(each.grant)
    seen: dict[tuple[int, int], int] = {}
    found: dict[int, Grant] = {}
    for run in runs:
        key = (run.region.address.epoch, run.region.region_id)
        number = seen.get(key, 0)
        seen[key] = number + 1
        of_region = by_region.get(key, [])
        if number // MAX_RANGES < len(of_region):
            found[run.first] = of_region[number // MAX_RANGES]
    return found
