"""Records of clusters: which processes they mean, and what is left once they are ended."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mcctl.cluster.process_identity import ProcessIdentity, identify, stop_all
from mcctl.cluster.record import (
    ClusterRecord,
    DaemonRecord,
    end_cluster,
    read_record,
    segment_directory,
    sweep,
    write_record,
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    short = tmp_path / "r"
    short.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(short))
    root = short / f"mooncake-{os.getuid()}"
    root.mkdir(mode=0o700)
    return root


def _record(
    directory: Path, process: ProcessIdentity | None, owner: ProcessIdentity | None
) -> ClusterRecord:
    daemon = DaemonRecord(name="mc-master", role="master", process=process, log="")
    scratch = directory.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    return ClusterRecord(
        directory=str(directory),
        master="tcp://127.0.0.1:1",
        events="tcp://127.0.0.1:2",
        url="http://127.0.0.1:3",
        model="/m",
        scratch=[str(scratch)],
        owner=owner,
        daemons=[daemon],
    )


def test_a_cluster_serves_while_each_role_that_an_answer_needs_has_a_process(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    alive, roles = _identify(sleeper.pid), ("master", "prefill", "decode", "gateway")
    daemons = [DaemonRecord(name=f"mc-{role}", role=role, process=alive, log="") for role in roles]
    record = _record(tmp_path, alive, None)
    assert msgspec.structs.replace(record, daemons=daemons).can_serve
    for index, daemon in enumerate(daemons):
        ended = msgspec.structs.replace(daemon, process=None)
        without = [*daemons[:index], ended, *daemons[index + 1 :]]
        assert not msgspec.structs.replace(record, daemons=without).can_serve
        assert msgspec.structs.replace(record, daemons=[*without, daemon]).can_serve


def _identify(pid: int) -> ProcessIdentity:
    found = identify(pid)
    assert found is not None
    return found


def test_identity_is_alive_until_the_process_ends(sleeper: subprocess.Popen[bytes]) -> None:
    identity = _identify(sleeper.pid)
    assert identity.is_alive
    assert stop_all([identity], grace_s=5) == []
    assert not identity.is_alive  # a zombie: nobody has waited for it yet
    sleeper.wait()
    assert not identity.is_alive


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_same_pid_of_another_life_is_not_alive(change: dict[str, object]) -> None:
    identity = msgspec.structs.replace(_identify(os.getpid()), **change)
    assert not identity.is_alive
    assert not identity.send(9)  # and is not killed


def test_process_that_ignores_sigterm_is_killed() -> None:
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = _identify(process.pid)
        assert stop_all([identity], grace_s=0.1) == [identity]
        assert process.wait() == -9


def test_record_reads_back(tmp_path: Path) -> None:
    record = _record(tmp_path / "c", _identify(os.getpid()), None)
    (tmp_path / "c").mkdir()
    write_record(record)
    assert read_record(tmp_path / "c") == record


def test_record_of_another_release_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"a": 1}')
    assert read_record(tmp_path) is None


def test_ending_a_cluster_leaves_nothing(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    directory = tmp_path / "c"
    directory.mkdir()
    record = _record(directory, _identify(sleeper.pid), None)
    write_record(record)
    assert end_cluster(record, grace_s=5) == []
    assert sleeper.wait() == -15
    assert list(tmp_path.iterdir()) == []


def test_sweep_ends_a_cluster_whose_command_was_killed(
    runtime: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    directory = runtime / "cluster-x"
    directory.mkdir()
    segments = segment_directory(directory)
    segments.mkdir()
    dead = msgspec.structs.replace(_identify(os.getpid()), start_ticks=1)
    write_record(_record(directory, _identify(sleeper.pid), dead))
    assert sweep() == [str(directory)]
    assert sleeper.wait() == -15
    assert not segments.exists()
    assert not directory.exists()


def test_sweep_leaves_a_cluster_whose_command_lives(
    runtime: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    directory = runtime / "cluster-x"
    directory.mkdir()
    write_record(_record(directory, _identify(sleeper.pid), _identify(os.getpid())))
    (runtime / "cluster-being-made").mkdir()
    assert sweep() == []
    assert sleeper.poll() is None
