"""Blocks under read: several replicas of each, whose bytes are verified where they arrive.

Whatever goes wrong with one replica (it fails, is silent, does not verify) is read from the next one of that block;
a block without another one ends what is good. All replicas of a block have the same bytes, so one trailer, verified
against the seal checksum of the directory, vouches for any of them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from daemons.client.node_health import PATIENT_S, NodeHealth, life_of
from daemons.client.readable import grants_of, of_one_shape, same_bytes
from daemons.core.errors import McError, TransferError
from daemons.core.ids import NodeId
from daemons.protocol.block import BlockLocation
from daemons.protocol.segment import Grant, RegionGrant, RegionRef
from daemons.store.segment.runs import BlockRun, runs_of
from daemons.store.segment.seal import BadSeal, Trailer, parse_trailer, row_checksums
from daemons.transfer import ByteArray, Read, ReadBatch, TransferEngine

LayerTarget = tuple[ByteArray, ByteArray]
"""Writable bytes for the k rows and the v rows of one layer: block i's row at i * row_bytes."""

_Reads = Iterator[tuple[BlockRun, Read]]


class OpenedBlocks:
    """Located blocks whose trailers were verified; `num_good` only shrinks. One thread at a time."""

    def __init__(
        self,
        engine: TransferEngine,
        health: NodeHealth,
        replicas: Sequence[Sequence[BlockLocation]],
        grants: Sequence[RegionGrant],
        timeout_s: float,
    ) -> None:
        """`replicas` of each block, the one that the reply named first; `grants` are for those."""
        first = of_one_shape([of_block[0] for of_block in replicas])
        self.num_good = len(first)
        self.num_layers = first[0].num_layers if first else 0
        self.row_bytes = first[0].length // (2 * self.num_layers) if first else 0
        self.bad: list[tuple[BlockLocation, str]] = []
        """Replicas whose bytes did not verify, for BadReplica: the node checks before it drops one."""
        self.unreachable: list[tuple[BlockLocation, str]] = []
        """Replicas that could not be read; says nothing about their bytes."""
        self._engine = engine
        self._health = health
        self._suspects: set[tuple[NodeId, int]] = set()
        """Lives of nodes that were in doubt before: not waited for when nobody else has a block."""
        self._hurried: set[tuple[NodeId, int]] = set()
        """Lives that were left for others once; they may be asked again, with patience."""
        self._returned: set[tuple[NodeId, int]] = set()
        self._asked: set[tuple[NodeId, int]] = set()
        self._grants = grants_of(list(runs_of(first)), grants) if grants else {}
        self._others: list[list[BlockLocation]] = []
        self.locations: list[BlockLocation] = []
        """Where each block is read now."""
        self._choose(
            [same_bytes(at, of_block) for at, of_block in zip(first, replicas, strict=False)]
        )
        self._all_runs: list[BlockRun] | None = None
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
        return self._gather(
            num_blocks,
            lambda start, end: self._layer_reads(first, targets, start, end),
            lambda start, end: self._check_layers(first, targets, start, end),
            timeout_s,
        )

    def _choose(self, replicas: Sequence[Sequence[BlockLocation]]) -> None:
        for of_block in replicas:
            ranked = [at for at in of_block if not self._is_suspect(at)]
            ranked += [at for at in of_block if at not in ranked]
            self.locations.append(ranked[0])
            self._others.append(ranked[1:])

    def _is_suspect(self, at: BlockLocation) -> bool:
        """As it was when this read began: it asks about each life once."""
        life = life_of(at)
        if life not in self._asked:
            self._asked.add(life)
            if self._health.is_suspect(at):
                self._suspects.add(life)
        return life in self._suspects

    # -- reading until it is good ----------------------------------------------------------------------------------

    def _gather(
        self,
        num_blocks: int,
        reads: Callable[[int, int], _Reads],
        check: Callable[[int, int], tuple[int, str]],
        timeout_s: float,
    ) -> int:
        """Read and check [0, num_blocks), turning to other replicas; each turn gets further or uses one up.

        `check` returns the first block that is bad, and why; how far it was asked when all are good.
        """
        deadline_s = time.monotonic() + timeout_s
        done, end = 0, min(num_blocks, self.num_good)
        while done < end:
            arrived, error = self._fetch(reads(done, end), end, deadline_s)
            good, why = check(done, arrived)
            if good < arrived:
                self.bad.append((self.locations[good], why))
                self._turn(good, may_return=False)
            elif error is not None:
                self._left(arrived, error)
            done, end = good, min(end, self.num_good)
        return end

    def _fetch(self, reads: _Reads, end: int, deadline_s: float) -> tuple[int, McError | None]:
        """One batch a region, in the order of the blocks. The first block that did not arrive, and why."""
        batches: list[tuple[int, RegionRef, Grant | None, list[Read]]] = []
        for run, read in reads:
            grant = self._grants.get(run.first)
            if not batches or batches[-1][1] != run.region or batches[-1][2] is not grant:
                batches.append((run.first, run.region, grant, []))
            batches[-1][3].append(read)
        ends = [*(batch[0] for batch in batches[1:]), end]
        for (first, region, grant, of_region), last in zip(batches, ends, strict=True):
            is_hurried = self._hurries(first, last)
            batch = ReadBatch(
                region,
                of_region,
                timeout_s=max(0.001, deadline_s - time.monotonic()),
                capability=grant,
                stall_s=self._health.hedge_s if is_hurried else PATIENT_S,
            )
            try:
                self._engine.run(batch)
            except McError as error:
                if is_hurried:
                    self._hurried.add(life_of(self.locations[first]))
                return first, error
            self._health.answered(self.locations[first])
        return end, None

    def _hurries(self, first: int, last: int) -> bool:
        """The last replica of a block that anybody has gets patience, unless its node was in doubt before."""
        life = life_of(self.locations[first])
        if life in self._suspects:
            return True
        return life not in self._hurried and any(self._others[first:last])

    def _left(self, index: int, error: McError) -> None:
        """Its node cannot be read: this block, and those behind it on the same node, go to others where there are."""
        failed = self.locations[index]
        life = life_of(failed)
        may_return = life in self._hurried and life not in self._returned | self._suspects
        if may_return:
            self._returned.add(life)
        self.unreachable.append((failed, error.message))
        self._health.failed(failed, error)
        self._turn(index, may_return=may_return)
        for later in range(index + 1, self.num_good):
            if self._others[later] and life_of(self.locations[later]) == life:
                self._turn(later, may_return=may_return)

    def _turn(self, index: int, *, may_return: bool) -> None:
        """To the next replica of this block; without one the good blocks end here."""
        others = self._others[index]
        if may_return:
            others.append(self.locations[index])
        if not others:
            self.num_good = index
            return
        self.locations[index] = others.pop(0)
        self._grants.pop(index, None)
        self._all_runs = None

    # -- what is read ------------------------------------------------------------------------------------------------

    def _open(self, timeout_s: float) -> None:
        if not self.locations:
            return
        size, payload = self.locations[0].trailer_bytes, self.locations[0].length
        packed = np.empty(size * len(self.locations), np.uint8)

        def reads(start: int, end: int) -> _Reads:
            for run in self._runs(start, end):
                rows = run.rows(payload, size, run.num_blocks)
                yield run, Read.into(rows, packed, run.first * size)

        def check(start: int, end: int) -> tuple[int, str]:
            for index in range(start, end):
                why = self._add_trailer(index, packed[index * size : (index + 1) * size].data)
                if why is not None:
                    return index, why
            return end, ""

        self._gather(len(self.locations), reads, check, timeout_s)

    def _add_trailer(self, index: int, packed: memoryview) -> str | None:
        at = self.locations[index]
        try:
            trailer = parse_trailer(packed, at.seal_checksum, at.hash)
        except BadSeal as error:
            return error.message
        if (trailer.length, trailer.num_layers) != (at.length, self.num_layers):
            return "the trailer is of a block of another shape"
        self._trailers.append(trailer)
        return None

    def _layer_reads(
        self, first: int, targets: Sequence[LayerTarget], start: int, end: int
    ) -> _Reads:
        row = self.row_bytes
        for run in self._runs(start, end):
            offset = 2 * first * row
            for target in targets:
                for rows in target:
                    remote = run.rows(offset, row, run.num_blocks)
                    yield run, Read.into(remote, rows, run.first * row)
                    offset += row

    def _check_layers(
        self, first: int, targets: Sequence[LayerTarget], start: int, end: int
    ) -> tuple[int, str]:
        why = ""
        at = slice(start * self.row_bytes, None)
        for layer, (k_rows, v_rows) in enumerate(targets, first):
            found = row_checksums(k_rows.data[at], v_rows.data[at], self.row_bytes, end - start)
            for index, checksum in enumerate(found, start):
                if checksum != self._trailers[index].checksums[layer]:
                    end, why = index, f"layer {layer} does not match its checksum"
                    break
        return end, why

    def _runs(self, start: int, end: int) -> Iterator[BlockRun]:
        """Of blocks [start, end)."""
        if start:
            for run in runs_of(self.locations[start:end]):
                yield replace(run, first=start + run.first)
            return
        if self._all_runs is None:
            self._all_runs = list(runs_of(self.locations))
        for run in self._all_runs:
            if run.first >= end:
                return
            count = min(run.num_blocks, end - run.first)
            yield run if count == run.num_blocks else replace(run, num_blocks=count)
