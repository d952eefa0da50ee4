"""Memory that nodes pull from: copied when small, in place when registered, given back when answered."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from daemons.client.objects import source as object_source
from daemons.client.objects.source import SourceMemory
from daemons.core.errors import NotFound
from daemons.core.units import MIB
from daemons.protocol.segment import RegionRef
from daemons.transfer import ByteArray, Read, TransferEngine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TransferEngine]:
    engine = TransferEngine(unix_dir=tmp_path)
    yield engine
    engine.close()


@pytest.fixture
def memory(engine: TransferEngine) -> Iterator[SourceMemory]:
    memory = SourceMemory(engine)
    yield memory
    memory.close()


def value(size: int, seed: int = 1) -> ByteArray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", [1, 4096, MIB, MIB + 1, 3 * MIB])
def test_a_value_of_any_size_can_be_read_until_it_is_released(
    engine: TransferEngine, memory: SourceMemory, size: int
) -> None:
    used, given = memory.open(), value(size)
    source = memory.add(used, given)
    found = np.zeros(size, np.uint8)
    read = Read.into(source.ranges, found)
    engine.read(source.region, [read], generation=source.generation)
    assert np.array_equal(found, given)
    memory.release(used)


def test_registered_memory_is_named_where_it_lies(memory: SourceMemory) -> None:
    buffer = value(80 * 1024)
    region = memory.register(buffer)
    source = memory.add(memory.open(), buffer[4096:])
    assert (source.region, source.ranges.offset) == (region, 4096)
    small = memory.add(memory.open(), buffer[:4096])
    assert small.region != region, (
        "nodes have the arena mapped, where they pull small values at once"
    )
    memory.deregister(region)
    with pytest.raises(NotFound):
        memory.deregister(region)


def test_the_arena_never_gives_one_place_to_two_puts(
    memory: SourceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_source, "_MAX_SPARE_BYTES", 3 * 4096)
    sizes = [100, 4096, 5000, 70_000, MIB]
    for turn in range(6):
        opened = [memory.open() for _ in range(10)]
        spans: list[tuple[int, int]] = []
        region: RegionRef | None = None
        for number, used in enumerate(opened):
            source = memory.add(used, value(sizes[(number + turn) % len(sizes)]))
            region = region or source.region
            assert source.region == region
            spans.append((source.ranges.offset, source.ranges.end))
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        for used in opened:
            memory.release(used)


def test_a_full_arena_gives_spare_slots_up_and_then_takes_memory_as_it_is(
    memory: SourceMemory,
) -> None:
    for _ in range(2):
        opened = [memory.open() for _ in range(70)]
        regions = {
            memory.add(used, value(MIB, n)).region.region_id for n, used in enumerate(opened)
        }
        assert len(regions) > 1, "beyond 64 MiB values are registered one by one"
        for used in opened:
            memory.release(used)
