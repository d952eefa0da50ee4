"""Pool quotas of tenants: their own coldest blocks leave first, others keep theirs, and a refused put says why."""

import contextlib
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.daemon import wait_for
from kit.full_disk import room_for
from kit.object_pool import ObjectPool

from daemons.client.cluster import ClusterClient
from daemons.core.errors import Exhausted
from daemons.core.units import MIB
from daemons.protocol.block import BlockFilter
from daemons.protocol.tenant import PoolUsage
from mcctl import Store
from mcctl.main import main

pytestmark = pytest.mark.timeout(120)

QUOTA = 6 * MIB
VALUE = MIB // 4


@pytest.fixture(scope="module")
def both() -> Iterator[ObjectPool]:
    made = ObjectPool(2, segment="32MiB")
    yield made
    made.close()


@pytest.fixture
def pool(both: ObjectPool) -> Iterator[ObjectPool]:
    """One for both tests: to start it takes longest."""
    yield both
    with ClusterClient(both.endpoint, 20.0) as client:
        client.set_pool_quota("acme", 0)
        client.clear_blocks(BlockFilter())


def usage(pool: ObjectPool, tenant: str) -> PoolUsage:
    with ClusterClient(pool.endpoint) as client:
        found = {each.tenant: each for each in client.pool_usage()}
    return found.get(tenant, PoolUsage(tenant=tenant))


def mcctl(pool: ObjectPool, *words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*words, "--endpoint", pool.endpoint]) == 0
    return out.getvalue()


def put(pool: ObjectPool, tenant: str, numbers: range) -> None:
    with Store(pool.endpoint, namespace=tenant) as store:
        for number in numbers:
            store.put(f"v{number}", random.Random(number).randbytes(VALUE))


def held(pool: ObjectPool, tenant: str, numbers: range) -> list[int]:
    with Store(pool.endpoint, namespace=tenant) as store:
        return [number for number in numbers if store.get(f"v{number}") is not None]


def test_a_tenant_above_its_quota_loses_its_own_coldest_blocks_and_nobody_elses(
    pool: ObjectPool,
) -> None:
    text = mcctl(pool, "tenant", "quota", "acme", "--pool-bytes", "6MiB", "--output", "json")
    assert json.loads(text)["pool"][0]["quota_bytes"] == QUOTA
    put(pool, "other", range(40))
    put(pool, "acme", range(60))
    wait_for(lambda: 0 < usage(pool, "acme").used_bytes <= QUOTA, what="acme within its quota")
    assert held(pool, "other", range(40)) == list(range(40))
    left = held(pool, "acme", range(60))
    assert 8 <= len(left) < 30
    assert min(left) > 20, "the coldest went"
    assert usage(pool, "acme").num_evicted > 0
    assert usage(pool, "other").quota_bytes == 0
    pool.kill("master")
    pool.daemons["master"].end()
    pool.daemons["master"].start()
    pool.wait_joined(2)
    assert usage(pool, "acme").quota_bytes == QUOTA, "a quota outlives the master"
    put(pool, "acme", range(100, 140))
    wait_for(lambda: 0 < usage(pool, "acme").used_bytes <= QUOTA, what="acme within its quota")


def test_a_quota_of_which_the_file_has_no_room_is_not_half_changed(
    pool: ObjectPool, tmp_path: Path
) -> None:
    file = str(tmp_path / "tenants.toml")
    mcctl(pool, "tenant", "add", "acme", "--file", file)
    mcctl(pool, "tenant", "quota", "acme", "--pool-bytes", "6MiB")
    words = ("tenant", "quota", "acme", "--pool-bytes", "1GiB", "--max-requests", "3")
    said = io.StringIO()
    with contextlib.redirect_stderr(said), room_for(0):
        assert main([*words, "--file", file, "--endpoint", pool.endpoint]) == 78
    assert f"cannot write {file}" in said.getvalue()
    assert usage(pool, "acme").quota_bytes == QUOTA
    mcctl(pool, *words, "--file", file)
    assert usage(pool, "acme").quota_bytes == 1 << 30


def test_when_nothing_of_a_tenant_may_go_its_puts_are_refused_and_say_why(
    pool: ObjectPool,
) -> None:
    put(pool, "acme", range(60))
    with ClusterClient(pool.endpoint) as client:
        hashes = [each.meta.hash for each in client.blocks(BlockFilter())]
        client.pin_blocks(hashes, "hard", 600.0)
        client.set_pool_quota("acme", QUOTA)
        wait_for(lambda: usage(pool, "acme").is_refused, what="the quota to be felt")
    number = 60

    def refusal() -> str:
        nonlocal number
        number += 1
        try:
            put(pool, "acme", range(number, number + 1))
        except Exhausted as error:
            return error.message
        return ""

    why = ""

    def is_refused() -> bool:
        nonlocal why
        why = refusal()
        return "above its quota of 6.0 MiB" in why

    wait_for(is_refused, 60.0, what="a refusal")
    assert "pinned hard" in why
    put(pool, "other", range(5))
    with ClusterClient(pool.endpoint) as client:
        client.pin_blocks(hashes, "none")
    wait_for(lambda: usage(pool, "acme").used_bytes <= QUOTA, what="room")
    wait_for(lambda: not refusal(), 60.0, what="puts again")
