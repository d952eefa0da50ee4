"""python -m soak --seconds 600 --seed 1: exits 0 when nothing that was acknowledged was lost, torn or undone."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from daemons.client.objects.store import Store
from daemons.core.errors import McError
from soak.blocks import BlockClient
from soak.clients import Client, name_of
from soak.faults import Faults
from soak.model import NameModel
from soak.world import World

NUM_CLIENTS = 3
NAMES_EACH = 12
_SETTLE_S = 90.0


def soak(seconds: float, seed: int, disk: Path) -> list[str]:
    """Violations."""
    world = World(disk)
    try:
        names = [NameModel(number) for number in range(NUM_CLIENTS * NAMES_EACH)]
        clients = [
            Client(
                world.endpoint,
                1000 * seed + index,
                names[index::NUM_CLIENTS],
                names,
                is_far=index == NUM_CLIENTS - 1,
            )
            for index in range(NUM_CLIENTS)
        ]
        workers: list[Client | BlockClient] = [
            *clients,
            BlockClient(world.endpoint, seed, world.directory / "blocks"),
        ]
        faults = Faults(world, seed)
        for thread in (*workers, faults):
            thread.start()
        _watch(seconds, workers, faults)
        for thread in (faults, *workers):
            thread.ends.set()
            thread.join(120)
        violations = [each for worker in workers for each in worker.violations] + faults.errors
        world.heal()
        missing = _missing(world, names)
        for text in missing:
            sys.stdout.write(f"missing: {text}\n")
        if len(missing) > faults.num_damaged:
            violations += [f"lost: {text}" for text in missing]
        _say("faults", faults.counts)
        _say("operations", sum((worker.counts for worker in workers), Counter()))
        if violations:
            sys.stderr.write(world.logs() + "\n")
        return violations
    finally:
        world.close()


def _watch(seconds: float, workers: Sequence[Client | BlockClient], faults: Faults) -> None:
    """Until the time is over or something is wrong."""
    end_s = time.monotonic() + seconds
    said_s = time.monotonic()
    while time.monotonic() < end_s and faults.is_alive():
        if any(worker.violations for worker in workers):
            return
        time.sleep(0.2)
        if time.monotonic() - said_s > 10:
            said_s = time.monotonic()
            num_done = sum(worker.counts.total() for worker in workers)
            sys.stderr.write(f"{end_s - said_s:.0f} s left, {num_done} operations\n")


def _missing(world: World, names: list[NameModel]) -> list[str]:
    """Acknowledged objects that cannot be read though every node is well."""
    missing = []
    deadline_s = time.monotonic() + _SETTLE_S
    with Store(world.endpoint, namespace="soak", timeout_s=5.0) as store:
        for model in names:
            if not model.must_exist:
                continue
            why = _why_missing(store, model)
            while why is not None and time.monotonic() < deadline_s:
                time.sleep(0.5)
                why = _why_missing(store, model)
            if why is not None:
                missing.append(f"name {model.number}, try {model.history[-1].attempt}: {why}")
    return missing


def _why_missing(store: Store, model: NameModel) -> str | None:
    try:
        value = store.get(name_of(model))
    except McError as error:
        return error.message
    if value is None:
        return "a miss"
    model.check(value, model.last(is_own=False))
    return None


def _say(what: str, counts: Counter[str]) -> None:
    text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    sys.stdout.write(f"{what}: {text or 'none'}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcsoak-") as disk:
        violations = soak(options.seconds, options.seed, Path(disk))
    for violation in violations:
        sys.stdout.write(f"VIOLATION {violation}\n")
    sys.stdout.write(f"seed {options.seed}: {len(violations)} violations\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
