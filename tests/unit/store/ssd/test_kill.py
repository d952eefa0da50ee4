"""A real process, killed while it writes: what it said was done is there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from unit.store.ssd.crash_disk import aligned_copy
from unit.store.ssd.made_blocks import key, make_block

from daemons.core.units import KIB, MIB
from daemons.store.ssd import DiskDirectory, SsdSettings, SsdTier

SETTINGS = SsdSettings(capacity_bytes=64 * MIB, bucket_bytes=MIB, batch_bytes=256 * KIB)
LAYER_BYTES = 15_000

WRITER = """
import sys
from pathlib import Path
from unit.store.ssd.made_blocks import key, make_block
from unit.store.ssd.test_kill import LAYER_BYTES, SETTINGS
from daemons.store.ssd import DiskDirectory, SsdTier

tier = SsdTier(DiskDirectory(Path(sys.argv[1])), SETTINGS)
tier.start()
for number in range(100_000):
    tier.put(*make_block(number, layer_bytes=LAYER_BYTES)).add_done_callback(
        lambda done, number=number: print("put", number, flush=True)
    )
    if number % 7 == 6:
        tier.flush(30)
        tier.delete([key(number - 3)]).result(30)
        print("deleted", number - 3, flush=True)
"""


def test_what_was_acknowledged_survives_kill_minus_nine(tmp_path: Path, checkout: Path) -> None:
    paths = os.pathsep.join([str(checkout), str(checkout / "tests")])
    done: set[int] = set()
    deleted: set[int] = set()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths},
        text=True,
    ) as writer:
        assert writer.stdout is not None
        for count, line in enumerate(writer.stdout):
            what, number = line.split()
            (done if what == "put" else deleted).add(int(number))
            if count == 400:
                writer.send_signal(signal.SIGKILL)
    tier = SsdTier(DiskDirectory(tmp_path), SETTINGS)
    assert len(done) > 300
    for number in done - deleted:
        block, stored = make_block(number, layer_bytes=LAYER_BYTES)
        target = aligned_copy(bytes(block.stored_bytes))
        # Deleted at the very end: its line was not written any more.
        if tier.get(key(number)) is None and number + 10 >= max(done):
            continue
        tier.read(key(number), target)
        assert bytes(target) == bytes(stored)
    assert not {key(number) for number in deleted} & set(tier.hashes())
    tier.close()
