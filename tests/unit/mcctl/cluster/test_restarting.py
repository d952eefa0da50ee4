"""Restarts of single daemons that are refused before anything is stopped."""

import os
from pathlib import Path

import pytest

from daemons.core.errors import Unavailable
from mcctl.cluster.process_identity import identify
from mcctl.cluster.record import ClusterRecord, DaemonRecord, Role
from mcctl.cluster.restarting import Restart


def daemon(name: str, role: Role, *, is_alive: bool) -> DaemonRecord:
    """An own process stands for one that lives."""
    process = identify(os.getpid()) if is_alive else None
    return DaemonRecord(name=name, role=role, process=process, log=f"{name}.log")


def test_nothing_is_stopped_where_the_master_has_ended(tmp_path: Path) -> None:
    record = ClusterRecord(
        directory=str(tmp_path),
        master="tcp://127.0.0.1:9",
        events="",
        url="http://127.0.0.1:9",
        model="m",
        scratch=[],
        owner=None,
        daemons=[
            daemon("mc-master", "master", is_alive=False),
            daemon("mc-prefill-1", "prefill", is_alive=True),
            daemon("mc-decode-1", "decode", is_alive=True),
        ],
    )
    said: list[str] = []
    restart = Restart(record, ["mc-decode-1", "mc-prefill-1"])
    with pytest.raises(
        Unavailable, match="mcctl cluster restart mc-master mc-prefill-1 mc-decode-1"
    ):
        restart.run(said.append, grace_s=1.0, timeout_s=1.0)
    assert said == []
    assert restart.record == record
    assert not list(tmp_path.iterdir())
