"""A gateway with tenants over real HTTP: who comes in, whose blocks are whose, what is refused and written down."""

import json
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from integration.test_gateway import (
    MODEL,
    NAMESPACE,
    Bench,
    ScriptedDecode,
    running_gateway,
    says,
)
from kit.daemon import wait_for

from daemons.config.mc_gateway import GatewayConfig, TenantsSection
from daemons.config.usage import day_of, usage_file
from daemons.core.errors import ConfigError
from daemons.mc_gateway.app import GatewayApp
from daemons.mc_gateway.tenants import may_read_metrics
from daemons.protocol.prefix_hash import block_hashes, tenant_namespace
from mcctl.main import main

LONG = "A sentence that every tenant sends alike, word for word and letter for letter. " * 20


class Desk:
    """mcctl tenant on the file that the gateway reads."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "tenants.toml"
        self._capsys = capsys

    def run(self, *words: str, code: int = 0) -> Any:
        self._capsys.readouterr()
        assert main(["tenant", *words, "--file", str(self.file), "--output", "json"]) == code
        out = self._capsys.readouterr().out
        return json.loads(out) if out else None

    def tenant(self, name: str, *limits: str) -> str:
        """Its key."""
        self.run("add", name)
        if limits:
            self.run("quota", name, *limits)
        return str(self.run("key", name)["key"])


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(tmp_path, capsys)
    made.run("add", "first")
    return made


@pytest.fixture
def bench(tmp_path: Path, desk: Desk) -> Iterator[Bench]:
    decodes = [ScriptedDecode("decode-a", says("an answer of some tokens"))]
    tenants = TenantsSection(file=str(desk.file))
    with running_gateway(tmp_path, decodes, tenants=tenants) as running:
        yield running


def ask(bench: Bench, key: str, text: str = "hi", **extra: object) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **extra}
    return bench.http.post(
        "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
    )


def lines(desk: Desk) -> list[dict[str, Any]]:
    path = usage_file(desk.file.parent, day_of(time.time()))
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_a_good_key_comes_in(bench: Bench, desk: Desk) -> None:
    key = desk.tenant("acme")
    wait_for(lambda: ask(bench, key).status_code == 200)
    for wrong in ("none", key[:-1], key + "x"):
        refused = ask(bench, wrong)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert refused.headers["www-authenticate"] == "Bearer"
    assert bench.http.get("/v1/models").status_code == 401
    shown = bench.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    assert shown.status_code == 200
    assert bench.http.get("/health").status_code == 200
    desk.run("key", "acme", "--revoke", key[:11], "--yes")
    wait_for(lambda: ask(bench, key).status_code == 401)
    assert key not in desk.file.read_text(), "hashes only"


def test_equal_prompts_of_two_tenants_share_no_block(bench: Bench, desk: Desk) -> None:
    keys = {name: desk.tenant(name) for name in ("acme", "umbrella")}
    wait_for(lambda: ask(bench, keys["umbrella"]).status_code == 200)
    decode = bench.decodes[0]
    decode.generated.clear()
    for name in ("acme", "umbrella", "acme"):
        assert ask(bench, keys[name], LONG).status_code == 200
    first, other, again = decode.generated
    assert (first.tenant, other.tenant, again.tenant) == ("acme", "umbrella", "acme")
    assert first.hashes == again.hashes
    assert len(first.hashes) > 10
    assert not set(first.hashes) & set(other.hashes)
    assert first.tokens == other.tokens
    assert first.namespace == other.namespace == NAMESPACE, "the same instances serve them"
    salted = tenant_namespace(NAMESPACE, "acme")
    assert first.hashes == block_hashes(salted, first.tokens, 16)


def test_beyond_a_limit_it_is_429_and_others_go_on(bench: Bench, desk: Desk) -> None:
    slow = desk.tenant("slow", "--requests-per-minute", "2")
    free = desk.tenant("free")
    wait_for(lambda: ask(bench, free).status_code == 200)
    answers = [ask(bench, slow) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(answers[2].headers["retry-after"]) <= 60
    assert ask(bench, free).status_code == 200


def test_bodies_that_a_tenant_does_not_end_leave_others_room(tmp_path: Path, desk: Desk) -> None:
    stuck, free = desk.tenant("stuck"), desk.tenant("free")
    decodes = [ScriptedDecode("decode-a", says("an answer"))]
    tenants = TenantsSection(file=str(desk.file))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stuck}\r\n"
        "content-length: 100\r\n\r\n{"
    )
    with running_gateway(tmp_path, decodes, tenants=tenants, max_requests=2) as bench:
        wait_for(lambda: ask(bench, free).status_code == 200)
        host, port = bench.app.address.rsplit(":", 1)
        with (
            socket.create_connection((host, int(port)), 20) as one,
            socket.create_connection((host, int(port)), 20) as other,
        ):
            for sender in (one, other):
                sender.sendall(head.encode())
            [refused] = select.select([one, other], [], [], 20)[0]
            assert b" 429 " in refused.recv(4096)
            assert ask(bench, free).status_code == 200


def test_the_quota_of_a_day_counts_prompt_and_answer(bench: Bench, desk: Desk) -> None:
    key = desk.tenant("acme", "--tokens-per-day", "200")
    wait_for(lambda: ask(bench, key, max_tokens=30).status_code == 200)
    too_much = ask(bench, key, max_tokens=190)
    assert too_much.status_code == 429
    assert too_much.json()["error"]["code"] == "quota_exceeded"
    desk.run("quota", "acme", "--tokens-per-day", "0")
    wait_for(lambda: ask(bench, key, max_tokens=190).status_code == 200)


def test_usage_is_written_priced_and_shown(bench: Bench, desk: Desk) -> None:
    desk.run("price", MODEL, "--prompt", "1000000", "--completion", "2000000")
    key = desk.tenant("acme")
    wait_for(lambda: ask(bench, key).status_code == 200)
    answer = ask(bench, key).json()["usage"]
    streamed = ask(bench, key, stream=True)
    assert streamed.status_code == 200
    # A line is written after the last byte of its stream.
    wait_for(lambda: len(lines(desk)) == 3)
    written = lines(desk)
    for line in written:
        assert line["tenant"] == "acme"
        assert line["key"] == key[:11]
        assert line["prompt_tokens"] == answer["prompt_tokens"]
        assert line["completion_tokens"] == answer["completion_tokens"]
        assert line["cached_tokens"] == answer["prompt_tokens_details"]["cached_tokens"]
        computed = line["prompt_tokens"] - line["cached_tokens"]
        assert line["cost"] == computed + 2 * line["completion_tokens"]
    shown = desk.run("usage", "acme")["usage"]
    assert shown == [
        {
            "tenant": "acme",
            "model": MODEL,
            "requests": 3,
            "prompt_tokens": 3 * answer["prompt_tokens"],
            "cached_tokens": 3 * written[0]["cached_tokens"],
            "completion_tokens": 3 * answer["completion_tokens"],
            "cost": 3 * written[0]["cost"],
        }
    ]
    metrics = bench.http.get("/metrics").text
    name = 'mc_gateway_tenant_tokens_total{kind="prompt",tenant="acme"}'
    assert f"{name} {shown[0]['prompt_tokens']:.1f}" in metrics


def test_an_answer_that_the_client_left_is_counted_too(bench: Bench, desk: Desk) -> None:
    key = desk.tenant("acme")
    wait_for(lambda: ask(bench, key).status_code == 200)
    bench.decodes[0].interval_s = 0.05
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    headers = {"authorization": f"Bearer {key}"}
    with bench.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as stream:
        next(stream.iter_lines())
    wait_for(lambda: len(lines(desk)) == 2)
    whole, cut = lines(desk)
    assert cut["prompt_tokens"] == whole["prompt_tokens"]
    assert 0 < cut["completion_tokens"] < whole["completion_tokens"]
    assert cut["status"] == 499


def test_a_broken_tenant_file_is_78_at_the_start_and_ignored_later(
    bench: Bench, desk: Desk, tmp_path: Path
) -> None:
    key = desk.tenant("acme")
    wait_for(lambda: ask(bench, key).status_code == 200)
    desk.file.write_text("[[tenant]]\nname = 1\n")
    time.sleep(0.5)
    assert ask(bench, key).status_code == 200
    for file in (str(desk.file), str(tmp_path / "none.toml")):
        config = GatewayConfig(
            models={MODEL: str(tmp_path / "model")}, tenants=TenantsSection(file=file)
        )
        with pytest.raises(ConfigError, match=file):
            GatewayApp(config)


@pytest.mark.parametrize(
    ("client", "is_open", "is_shown"),
    [
        (("127.0.0.1", 1), False, True),
        (("::1", 1), False, True),
        (("10.0.0.9", 1), False, False),
        (("10.0.0.9", 1), True, True),
        (None, False, False),
    ],
)
def test_metrics_that_name_tenants_are_for_this_host(
    client: tuple[str, int] | None, is_open: bool, is_shown: bool
) -> None:
    assert may_read_metrics({"type": "http", "client": client}, is_open=is_open) is is_shown


@pytest.mark.parametrize(
    "header", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"]
)
def test_a_proxy_on_this_host_shows_them_to_nobody_else(bench: Bench, header: str) -> None:
    for path in ("/metrics", "/status", "/status/data.json"):
        assert bench.http.get(path, headers={header: "10.0.0.9"}).status_code == 403
    assert bench.http.get("/metrics").status_code == 200
    assert set(bench.http.get("/health", headers={header: "10.0.0.9"}).json()) == {"status"}
    assert len(bench.http.get("/health").json()) == 2


def test_quotas_hold_over_a_restart(tmp_path: Path, desk: Desk) -> None:
    key = desk.tenant("acme", "--tokens-per-day", "100")
    tenants = TenantsSection(file=str(desk.file))
    for status in (200, 429):
        decodes = [ScriptedDecode("decode-a", says("forty letters, that is forty tokens here"))]
        with running_gateway(tmp_path, decodes, tenants=tenants) as bench:
            assert ask(bench, key, max_tokens=60).status_code == status
