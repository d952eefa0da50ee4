"""Every example of README and the manual pages, run as it stands there, on one cluster of the size that they name.

The cluster's own two lines are run first and last. What cannot be run here stands in ELSEWHERE with what runs it.
"""

import contextlib
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from kit.daemon import free_port, wait_for
from kit.daemon_lines import LineOfDaemon, made_small
from kit.examples import Example, Place, examples_of
from kit.models import make_tiny_model
from kit.paced import write_profile
from kit.served import served

from mcctl.openai_stream import OpenAiClient

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[2]
UP, DOWN = "mcctl cluster up --prefill 2 --decode 2", "mcctl cluster down"
SSD_UP = "mcctl cluster up --ssd-directory ~/mooncake-ssd"
DEFAULT_MASTER = "tcp://127.0.0.1:7700"
ELSEWHERE = {
    "make quickstart": "tests/system/test_quickstart.py",  # the real model, for minutes
    "make test": ".ci/run",
    "mcctl quickstart": "tests/system/test_quickstart.py",
    "mcctl bench serve": "tests/system/test_quickstart.py",  # of the real model, as quickly as it may
    "mcctl bench transfer": "tests/integration/test_transfer_bench.py",  # with shorter rounds
    "systemctl ": "tests/systemd/test_serving.py",
    "ssh ": "tests/systemd/test_bare_machines.py",  # from another machine
}
"""By how they begin, and what runs them as they stand there."""
LOAD = "aiperf profile "
AIPERF = shutil.which("aiperf")
DEPLOYING = "mc-deploy.7"
"""Needs many machines: tests/systemd/test_bare_machines.py types every line of it, tests/shipped checks the configs."""
DAEMONS = ("mc-master", "mc-cachenode", "mc-prefill", "mc-decode", "mc-gateway")
FILES = ("weights.bin", "handbook.txt", "ARCHITECTURE.md")
CHANGED = {
    "mcctl cluster up ": " --paced fast.toml",  # test_quickstart.py waits for the real engine; here no line is about it
    "mcctl bench store": " --running --rounds 1 --writers 0",  # the cluster that is there, for a second
    "mcctl simulate run ": " --limit 50",  # many times as fast, and else the same
    "mcctl simulate plan ": " --limit 50",
    "mcctl keys ": " --directory etc",  # root's are in /etc
}
"""By how they begin, and what is written behind them."""
FRAGMENTS = (
    "SmolLM2-135M-Instruct (bfloat16)",  # what quickstart prints
    " request  ",
    "TTFT ",
    "Store(master=None, ",  # what there is, not what to do
    "engine = TransferEngine(bind_host=",
    "ignore = ",  # a file
    "engine.read(region, ",
    "engine.grant(region, ",
)
"""By how they begin: no examples."""
LIVE = "mcctl top"
"""Goes on until somebody ends it."""
STORE = """
import numpy
from mcctl import Store
array = numpy.ones(1000, numpy.float32)
"""


def pages() -> list[Path]:
    return [
        ROOT / "README.md",
        *(page for page in sorted((ROOT / "man").glob("*.[0-9]")) if page.name != DEPLOYING),
    ]


def plain(example: Example) -> str:
    return example.text.replace(".venv/bin/", "")


def changed(line: str) -> str:
    return line + "".join(behind for start, behind in CHANGED.items() if line.startswith(start))


SIZING = "mcctl simulate "
"""Of mc-deploy(7), this alone runs here."""
ALL = [
    *(each for page in pages() for each in examples_of(page)),
    *(each for each in examples_of(ROOT / "man" / DEPLOYING) if each.text.startswith(SIZING)),
]
LINES = [each for each in ALL if each.kind == "shell"]
ELSEWHERES = [each for each in LINES if plain(each).startswith(tuple(ELSEWHERE))]
OF_TENANTS = [
    f"mcctl tenant {verb} acme --file /etc/mooncake/tenants.toml" for verb in ("add", "key")
]
"""Before the gateway's line."""
OF_SSD = [SSD_UP, "mcctl cache flush --wait", DOWN]
HERE = list(
    {
        plain(each): each
        for each in LINES
        if each not in ELSEWHERES
        and plain(each) not in (UP, LIVE, *OF_TENANTS, *OF_SSD)
        and not plain(each).startswith((LOAD, *DAEMONS))
    }.values()
)
OF_DAEMONS = [plain(each) for each in LINES if plain(each).startswith(DAEMONS)]
PIECES = [each for each in ALL if each.kind == "python" and "engine.write" not in each.text]
[WRITER] = [each for each in ALL if each.kind == "python" and each not in PIECES]
"""Run with the piece that owns the memory."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("reader")
    model = make_tiny_model(home / ".cache" / "mooncake" / "models" / "SmolLM2-135M-Instruct")
    config = model / "config.json"
    settings = msgspec.json.decode(config.read_bytes())
    # A token a byte: as long as the files that are sent.
    config.write_bytes(msgspec.json.encode(settings | {"max_position_embeddings": 32768}))
    for name in FILES:
        shutil.copy(ROOT / "README.md", home / name)
    write_profile(home / "fast.toml")
    (home / "serve.json").write_bytes(msgspec.json.encode(served()))
    (home / "etc").mkdir()
    replaced = {
        "/etc/mooncake": str(home / "etc"),
        "/var/lib/mooncake/models": str(model.parent),
        "/srv/models/Qwen3-0.6B": str(model),
        "/tmp/demo": str(home / "demo"),
    }
    made = Place(home, replaced)
    (home / "demo").mkdir()
    for daemon in DAEMONS:
        file = f"{daemon}.toml" if daemon == "mc-master" else f"{daemon}@a.toml"
        text = (ROOT / "configs" / f"{daemon}.toml").read_text()
        (home / "etc" / file).write_text(made.put_in(text))
    yield made
    made.shell(DOWN)
    made.close()


@pytest.fixture(scope="module")
def master(place: Place) -> str:
    """Of the cluster."""
    done = place.shell(changed(UP))
    assert done.returncode == 0, done.stderr
    status = place.line("mcctl cluster status -o json")
    found = str(msgspec.json.decode(status.stdout)["master"])
    place.replaced |= {DEFAULT_MASTER: found, "Store()": f"Store({found!r})"}
    return found


def test_what_is_run_elsewhere_is_in_the_pages_and_has_its_test() -> None:
    for start, twin in ELSEWHERE.items():
        assert any(plain(each).startswith(start) for each in ELSEWHERES), start
        assert (ROOT / twin).exists(), twin
    assert {plain(each) for each in LINES} >= {UP, LIVE, *OF_TENANTS, *OF_SSD}
    assert any(each.page == DEPLOYING for each in LINES)
    texts = [each.text for each in ALL if each.kind == "text"]
    assert all(text.startswith(FRAGMENTS) for text in texts), texts
    assert sorted(line.split()[0] for line in OF_DAEMONS) == sorted(DAEMONS)
    assert len(HERE) > 20
    assert len(PIECES) >= 5


@pytest.mark.parametrize("example", HERE, ids=lambda example: example.name)
@pytest.mark.usefixtures("master")
def test_a_line_does_what_it_should(place: Place, example: Example) -> None:
    done = place.line(changed(plain(example)))
    assert done.returncode == 0, done.stdout + done.stderr


def test_daemons_of_the_pages_are_a_cluster_that_answers_and_end_when_told(place: Place) -> None:
    for line in OF_TENANTS:
        done = place.line(line + " --output plain")
        assert done.returncode == 0, done.stderr
    key = done.stdout.split()[-1]
    http_port, master = free_port(), f"tcp://127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        daemons = []
        for line in sorted(OF_DAEMONS, key=lambda line: DAEMONS.index(line.split()[0])):
            daemons.append(LineOfDaemon(place, made_small(line, master, http_port)))
            stack.callback(daemons[-1].close)
        for daemon in daemons:
            daemon.wait_until_ready()
        done = place.line(f"mcctl wait ready --nodes 4 --timeout 30 --endpoint {master}")
        assert done.returncode == 0, done.stderr
        with OpenAiClient(f"http://127.0.0.1:{http_port}", api_key=key) as client:
            wait_for(client.models)
            [model] = client.models()
            answer = client.complete({"model": model, "prompt": "A lighthouse", "max_tokens": 2})
        assert answer.completion_tokens == 2
        for daemon in reversed(daemons):
            assert daemon.end() == 0, daemon.said()


@pytest.mark.usefixtures("master")
def test_what_goes_on_shows_the_nodes_until_it_is_interrupted(place: Place) -> None:
    with place.start(["mcctl", "top"]) as process:
        assert process.stdout is not None
        try:
            while "prefill-2" not in process.stdout.readline():
                assert process.poll() is None
        finally:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


@pytest.mark.skipif(
    AIPERF is None, reason="aiperf is not installed: make test-aiperf does (0.9 GB), and runs this"
)
@pytest.mark.usefixtures("master")
def test_load_generator_of_others_replays_a_trace_and_meets_the_cache(place: Place) -> None:
    [example] = [each for each in LINES if plain(each).startswith(LOAD)]
    cluster = msgspec.json.decode(place.line("mcctl cluster status -o json").stdout)
    model = cluster["model"]
    folder = place.home / ".cache" / "mooncake" / "models" / model
    rows = [
        {
            "timestamp": 50 * at,
            "input_length": 1200,
            "output_length": 20,
            "hash_ids": [7, 8, 90 + at],
        }
        for at in range(8)
    ]
    trace = "".join(msgspec.json.encode(row).decode() + "\n" for row in rows)
    (place.home / "trace.jsonl").write_text(trace)
    url = cluster["url"].removesuffix("/v1")
    line = example.text.replace("--model MODEL", f"--model {model}")
    line = line.replace("TOKENIZER", str(folder)).replace("http://127.0.0.1:8000", url)
    done = place.shell(line, timeout_s=500)
    assert done.returncode == 0, done.stdout + done.stderr
    [file] = place.home.glob("artifacts/*/profile_export_aiperf.json")
    told = msgspec.json.decode(file.read_bytes())
    assert told["request_count"]["avg"] == len(rows)
    assert told["usage_prompt_cache_read_tokens"]["max"] >= 1024


@pytest.mark.parametrize("example", PIECES, ids=lambda example: example.name)
@pytest.mark.usefixtures("master")
def test_a_piece_of_python_runs(place: Place, example: Example) -> None:
    text = example.text
    if example.page in ("README.md", "mc-store.7"):
        text = STORE + text
    elif "notifications()" in text:
        _run_both(place, text)
        return
    done = place.python(text)
    assert done.returncode == 0, done.stderr


def _run_both(place: Place, owner: str) -> None:
    """Of mc-transfer(7): who owns memory, and who writes there."""
    region = place.home / "demo" / "region"
    with place.start([sys.executable, "-c", place.put_in(owner)]) as process:
        try:
            wait_for(lambda: region.exists() and region.stat().st_size)
            done = place.python(WRITER.text)
            assert done.returncode == 0, done.stderr
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert out == "b'done' [7 7 7 7]\n"


@pytest.mark.usefixtures("master")
def test_the_cluster_ends_and_another_one_writes_to_its_ssd(place: Place) -> None:
    for line in (DOWN, *OF_SSD):
        done = place.shell(changed(line))
        assert done.returncode == 0, done.stderr
    assert list((place.home / "mooncake-ssd").iterdir())
