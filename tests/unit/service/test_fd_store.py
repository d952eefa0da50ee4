"""What a process leaves to systemd's fd store, and what the next one finds of it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from daemons.service.fd_store import FdStore

_SHOW = """
import os, sys
from daemons.service.fd_store import FdStore
store = FdStore()
print(store.names(), [name for name in os.environ if name.startswith("LISTEN_")])
fd = store.take("memory")
print(store.names(), os.get_inheritable(fd), os.pread(fd, 9, 0), FdStore().names())
"""


def test_what_is_kept_goes_to_systemd_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    fd = os.memfd_create("test")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        store = FdStore()
        store.keep("memory", fd)
        data, fds, *_ = socket.recv_fds(systemd, 100, 2)
        assert data == b"FDSTORE=1\nFDNAME=memory\nFDPOLL=0"
        assert [os.path.sameopenfile(fd, other) for other in fds] == [True]
        store.forget("memory")
        assert systemd.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=memory"
    for each in (fd, *fds):
        os.close(each)


@pytest.mark.parametrize("is_for_this_process", [True, False])
def test_next_process_finds_it_once_and_its_children_do_not(
    tmp_path: Path, is_for_this_process: bool
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("its bytes")
    pid = "$$" if is_for_this_process else "1"
    script = f'LISTEN_PID={pid} LISTEN_FDS=2 LISTEN_FDNAMES=other:memory exec "$0" -c "$1" 3</dev/null 4<"$2"'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable, _SHOW, str(kept)],
        capture_output=True,
        text=True,
        check=is_for_this_process,
    )
    expected = "['other', 'memory'] []\n['other'] False b'its bytes' []\n"
    assert done.stdout == (expected if is_for_this_process else "[] []\n")


def test_without_systemd_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    store = FdStore()
    store.keep("memory", 0)
    store.forget("memory")
    store.wait_until_heard()
    assert (store.is_there, store.names()) == (False, [])
