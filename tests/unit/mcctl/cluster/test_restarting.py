"""Restarts of single daemons: refused before anything is stopped, and over once the gateway serves."""

import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
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


@pytest.mark.parametrize(("is_whole", "num_asked"), [(True, 3), (False, 0)])
def test_it_is_over_once_the_gateway_serves_and_at_once_where_it_cannot(
    is_whole: bool, num_asked: int
) -> None:
    asked: list[str] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200 if len(asked) == 3 else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        record = ClusterRecord(
            directory="",
            master="tcp://127.0.0.1:9",
            events="",
            url=f"http://127.0.0.1:{server.server_port}",
            model="m",
            scratch=[],
            owner=None,
            daemons=[
                daemon("mc-master", "master", is_alive=True),
                daemon("mc-prefill", "prefill", is_alive=True),
                daemon("mc-decode", "decode", is_alive=is_whole),
                daemon("mc-gateway", "gateway", is_alive=True),
            ],
        )
        Restart(record, ["mc-master"]).await_answers(timeout_s=60.0)
        server.shutdown()
    assert asked == ["/health"] * num_asked
