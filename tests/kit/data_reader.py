"""`python -m kit.data_reader KEY_FILE MASTER REGION`: a member that READs the first bytes of a region again and again.

It prints a line of JSON for each: what went wrong, or null. It keeps all keys that it was given for good.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from daemons.client.identity import open_client_identity
from daemons.config.key_files import read_key_file
from daemons.core.errors import McError
from daemons.core.ids import NodeId, new_epoch
from daemons.protocol.node import NodeDescription
from daemons.protocol.segment import DataAddress, RegionRef
from daemons.rpc import Loop
from daemons.service.master_link import MasterLink
from daemons.transfer import Read, TransferEngine, contiguous, host_id
from daemons.transfer.credentials import NodeKeys

_INTERVAL_S = 0.1
_NUM_BYTES = 4096


def region_of(shown: dict[str, Any]) -> RegionRef:
    """As mcctl node list shows it."""
    return RegionRef(**shown | {"address": DataAddress(**shown["address"])})


def run(key_file: str, master: str, region: RegionRef) -> None:
    key = read_key_file(Path(key_file))
    identity = open_client_identity(Path(key_file))
    assert identity is not None
    loop = Loop(identity=identity)
    epoch = new_epoch()
    assert key.role in ("cachenode", "gateway")
    described = NodeDescription(
        node=NodeId(key.node),
        role=key.role,
        host=os.uname().nodename,
        host_id=host_id(),
        epoch=epoch,
        control="tcp://127.0.0.1:1",
        pid=os.getpid(),
        software="",
    )
    keys = NodeKeys(identity.pair.public)
    with TransferEngine(epoch=epoch, transports=("tcp",), keys=keys) as engine:
        link = MasterLink(loop, master, lambda: described, on_keys=engine.admit)
        target = np.zeros(_NUM_BYTES, np.uint8)

        def read() -> None:
            if not link.incarnation:
                return
            why = None
            try:
                engine.read(region, [Read.into(contiguous(0, _NUM_BYTES), target)])
            except McError as error:
                why = f"{type(error).__name__}: {error.message}"
            sys.stdout.write(json.dumps(why) + "\n")
            sys.stdout.flush()

        loop.every(_INTERVAL_S, read)
        loop.run()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], region_of(json.loads(sys.argv[3])))
