"""mcctl tenant on its file; what a gateway makes of it is in tests/integration/test_tenants.py."""

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from daemons.config.tenants import hash_of, read_tenants
from daemons.config.usage import UsageLine, day_of, encode_line, usage_file
from daemons.core.errors import ConfigError
from mcctl.cluster.process_identity import identify
from mcctl.cluster.record import (
    ClusterRecord,
    DaemonRecord,
    persistent_directory,
    write_record,
)
from mcctl.main import main


def run(capsys: pytest.CaptureFixture[str], file: Path, *words: str, code: int = 0) -> Any:
    assert main(["tenant", *words, "--file", str(file), "--output", "json"]) == code
    out = capsys.readouterr().out
    return json.loads(out) if out else None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "etc" / "tenants.toml"


def test_limits_keys_and_prices_are_what_was_said(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    run(capsys, file, "add", "acme")
    run(capsys, file, "quota", "acme", "--tokens-per-day", "500", "--max-requests", "4")
    run(capsys, file, "quota", "acme", "--max-requests", "0")
    made = run(capsys, file, "key", "acme")
    run(capsys, file, "price", "m", "--prompt", "0.5")
    run(capsys, file, "price", "m", "--completion", "2")
    found = read_tenants(file)
    (tenant,), (key,), (price,) = found.tenant, found.key, found.price
    assert (tenant.tokens_per_day, tenant.max_requests) == (500, 0)
    assert key.hash == hash_of(made["key"])
    assert made["key"].startswith(key.id)
    assert len(made["key"]) > 40
    assert made["key"] not in file.read_text()
    assert (price.prompt, price.completion) == (0.0, 2.0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


@pytest.mark.parametrize("has_tenants", [True, False])
def test_beside_a_local_cluster_its_own_file_is_meant_and_said(
    has_tenants: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    own = tmp_path / "own.toml"
    daemon = DaemonRecord(name="mc-gateway", role="gateway", process=identify(os.getpid()), log="")
    directory = persistent_directory()
    directory.mkdir(parents=True)
    record = ClusterRecord(
        directory=str(directory), master="tcp://127.0.0.1:1", events="", url="", model="m", scratch=[], owner=None,
        daemons=[daemon], tenants=str(own) if has_tenants else None,
    )  # fmt: skip
    write_record(record)
    elsewhere = tmp_path / "mooncake" / "tenants.toml"
    assert main(["tenant", "add", "acme"]) == (0 if has_tenants else 4)
    said = capsys.readouterr().err
    assert (f"written to {own}" in said) is has_tenants
    assert (f"--file {elsewhere}" in said) is not has_tenants
    changes = (
        ["key", "acme"],
        ["quota", "acme", "--max-requests", "1"],
        ["price", "m", "--prompt", "1"],
    )
    for words in changes:
        assert main(["tenant", *words]) == (0 if has_tenants else 4)
    assert main(["tenant", "list"]) == 0, "to look does no harm"
    assert ("anybody may ask it" in capsys.readouterr().err) is not has_tenants
    assert (own.exists(), elsewhere.exists()) == (has_tenants, False)
    assert main(["tenant", "add", "acme", "--file", str(elsewhere)]) == 0


def test_what_is_not_there_or_there_already_is_said(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    assert run(capsys, file, "list") == {"tenants": []}
    for words in (("key", "x"), ("quota", "x", "--max-requests", "1")):
        run(capsys, file, *words, code=3)
    run(capsys, file, "add", "acme")
    run(capsys, file, "add", "acme", code=4)
    run(capsys, file, "add", "../acme", code=2)
    run(capsys, file, "price", "m", code=2)
    assert not read_tenants(file).price
    run(capsys, file, "key", "acme", "--revoke", "mc-nothing", "--yes", code=3)
    run(capsys, file, "key", "acme", "--revoke", "mc-nothing", code=5)


def test_usage_adds_up_over_gateways_and_passes_over_torn_lines(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    line = UsageLine(
        time="2026-01-01T00:00:00Z",
        gateway="g",
        tenant="acme",
        key="mc-1",
        model="m",
        request="r",
        status=200,
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=3,
        cost=0.5,
    )
    words: list[str] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        path = usage_file(tmp_path / name, day_of(time.time()))
        path.write_bytes(encode_line(line) + b'\n{"time": "cut\n' + encode_line(line) + b"\n")
        words += ["--usage-dir", str(tmp_path / name)]
    words += [
        "--usage-dir",
        str(tmp_path / "one"),
        "--usage-dir",
        str(tmp_path / "two" / ".." / "one"),
    ]
    (row,) = run(capsys, file, "usage", *words)["usage"]
    assert (row["requests"], row["prompt_tokens"], row["cost"]) == (4, 40, 2.0)
    run(capsys, file, "usage", "other", *words, code=3)
    run(capsys, file, "add", "other")
    assert run(capsys, file, "usage", "other", *words)["usage"] == []
    run(capsys, file, "usage", "--usage-dir", str(tmp_path / "none"), code=78)


def test_a_quota_that_the_master_does_not_take_leaves_the_file_as_it_was(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    run(capsys, file, "add", "acme")
    nobody = ("--pool-bytes", "4GiB", "--endpoint", "tcp://127.0.0.1:1", "--timeout", "0.1")
    run(capsys, file, "quota", "acme", "--max-requests", "3", *nobody, code=7)
    assert read_tenants(file).tenant[0].max_requests == 0
    run(capsys, file, "quota", "other", "--max-requests", "3", *nobody, code=3)


def test_an_empty_beginning_is_not_every_key_of_a_tenant(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    run(capsys, file, "add", "acme")
    run(capsys, file, "key", "acme")
    run(capsys, file, "key", "acme", "--revoke", "", "--yes", code=2)
    assert not read_tenants(file).key[0].revoked


def test_a_tenant_file_that_is_none_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError, match="is no file of at most"):
            read_tenants(path)


@pytest.mark.parametrize(
    "text",
    [
        f"[[key]]\ntenant = 'x'\nid = 'i'\nhash = '{'0' * 64}'\n",
        "[[tenant]]\nname = 'a'\n[[tenant]]\nname = 'a'\n",
        "[[tenant]]\nname = 'a'\ntokens_per_day = -1\n",
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_tenants(path)
    assert str(path) in caught.value.message
