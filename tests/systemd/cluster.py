"""A whole cluster of units on one machine: its configs, what it is asked, and what it holds.

Cache node a has its segment on the tmpfs that a mount unit brings, b in systemd's fd store.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kit.daemon import wait_for
from systemd.machine import ENGINE, SCRIPTS, Machine

MASTER, GATEWAY = "mc-master.service", "mc-gateway@a.service"
NODE_A, NODE_B = "mc-cachenode@a.service", "mc-cachenode@b.service"
PREFILL, DECODE = "mc-prefill@a.service", "mc-decode@a.service"
UNITS: Final = (MASTER, NODE_A, NODE_B, PREFILL, DECODE, GATEWAY)
ENDPOINT = "tcp://127.0.0.1:7700"
CONTROL: Final = {NODE_A: "tcp://127.0.0.1:7710", NODE_B: "tcp://127.0.0.1:7711"}
SEGMENTS, MODEL = "/var/lib/mooncake/segments", "/var/lib/mooncake/models/tiny"
NUM_BLOCKS = 100
"""Of each cache node: NODE_A's are the first."""
WAIT_S = 90.0
"""For daemons that start, on a machine with much else to do."""

_INSTANCE = f'[node]\nid = "{{}}-a"\n[model]\npath = "{MODEL}"\n[engine]\nkv_memory = "64MiB"\n'
CONFIGS: Final = {
    MASTER: '[node]\nid = "master"\n',
    NODE_A: f'[node]\nid = "node-a"\n[segment]\nsize = "64MiB"\ndirectory = "{SEGMENTS}"\n',
    NODE_B: '[node]\nid = "node-b"\nlisten = "tcp://127.0.0.1:7711"\nmetrics = "127.0.0.1:9711"\n'
    '[segment]\nsize = "64MiB"\ndirectory = ""\n',
    # As long as the units wait: this machine may have little time for them.
    PREFILL: _INSTANCE.format("prefill") + "[prefill]\ndrain_s = 100\n",
    DECODE: _INSTANCE.format("decode") + "[decode]\ndrain_s = 100\n",
    GATEWAY: f'[node]\nid = "gateway-a"\n[models]\ntiny = "{MODEL}"\n[http]\ndrain_s = 100\n',
}
PROMPT = " ".join(f"{number} is a number." for number in range(40))
BLOCK_TOKENS = 64


def role_of(unit: str) -> str:
    return re.split(r"[-@.]", unit)[1]


def config_file(unit: str) -> str:
    return f"/etc/mooncake/{unit.removesuffix('.service')}.toml"


def write_configs(machine: Machine, more: str = "", units: tuple[str, ...] = UNITS) -> None:
    for unit in units:
        machine.write(config_file(unit), CONFIGS[unit] + more)


def lend_torch(machine: Machine) -> None:
    """To every release: a wheel of it would be unpacked for half a minute. Its own packages come first."""
    for packages in machine.root.glob("opt/mooncake/releases/*/lib/python3*/site-packages"):
        (packages / "zz_engine.pth").write_text(f"{ENGINE}\n")


def main_pid(machine: Machine, unit: str) -> int:
    return int(machine.show(unit, "MainPID"))


def pids(machine: Machine, *units: str) -> dict[str, int]:
    return {unit: main_pid(machine, unit) for unit in units}


def wait_until_new(machine: Machine, old: dict[str, int]) -> None:
    """Each of these units runs, and another process than before."""

    def are_new() -> bool:
        return all(
            machine.show(unit, "SubState") == "running" and main_pid(machine, unit) not in (0, pid)
            for unit, pid in old.items()
        )

    wait_for(are_new, WAIT_S, f"another process of {' '.join(old)}")


def blocks(machine: Machine, *words: str) -> int:
    """See blocks.py."""
    return int(machine.run("/opt/mooncake/bin/python", f"{SCRIPTS}/blocks.py", *words).stdout)


def put_blocks(machine: Machine, unit: str) -> None:
    first = list(CONTROL).index(unit) * NUM_BLOCKS
    assert blocks(machine, "put", CONTROL[unit], str(first), str(NUM_BLOCKS)) == NUM_BLOCKS


def expect_blocks(machine: Machine, *units: str) -> None:
    """The master finds them, sooner or later, and they have their bytes."""
    firsts = [str(list(CONTROL).index(unit) * NUM_BLOCKS) for unit in units]
    found = blocks(machine, "wait", ENDPOINT, *firsts, str(NUM_BLOCKS))
    assert found == NUM_BLOCKS * len(units)


@dataclass(frozen=True, slots=True)
class Api:
    """Whom to ask, with a tenant's key where it needs one."""

    url: str = "http://127.0.0.1:8000"
    key: str = ""


LOCAL: Final = Api()


def _curl(max_tokens: int, *, stream: bool, api: Api) -> list[str]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    return [
        *("curl", "--silent", "--show-error", "--fail", "--no-buffer", "--max-time", "120"),
        *("--header", "content-type: application/json", "--data", json.dumps(body)),
        *("--header", f"authorization: Bearer {api.key}") * bool(api.key),
        f"{api.url}/v1/chat/completions",
    ]


def chat(machine: Machine, max_tokens: int = 8, *, api: Api = LOCAL) -> dict[str, Any] | None:
    """None where it is refused."""
    done = machine.run(*_curl(max_tokens, stream=False, api=api), fails=True)
    return None if done.returncode else dict(json.loads(done.stdout))


def expect_chat(machine: Machine, *, reuses: bool = True, api: Api = LOCAL) -> str:
    """An answer, sooner or later; with `reuses` of one whose prompt's full blocks all came from the pool."""
    answers: list[dict[str, Any]] = []

    def is_answered() -> bool:
        answer = chat(machine, api=api)
        if answer is not None:
            answers.append(answer)
        return answer is not None and (not reuses or _is_all_reused(answer))

    wait_for(is_answered, WAIT_S, "an answer" + reuses * " that reuses the whole prompt")
    return str(answers[-1]["choices"][0]["message"]["content"])


def _is_all_reused(answer: dict[str, Any]) -> bool:
    """All full blocks of the prompt, but for its last token."""
    usage = answer["usage"]
    num_blocks = (usage["prompt_tokens"] - 1) // BLOCK_TOKENS
    return bool(usage["prompt_tokens_details"]["cached_tokens"] == num_blocks * BLOCK_TOKENS)


class Streams:
    """Answers that are on their way while daemons come and go."""

    def __init__(
        self, machine: Machine, folder: Path, num: int, max_tokens: int = 200, *, api: Api = LOCAL
    ) -> None:
        """Returns once all have begun."""
        self._files = [folder / f"answer-{number}" for number in range(num)]
        self._processes = []
        for file in self._files:
            self._processes.append(
                machine.begin(*_curl(max_tokens, stream=True, api=api), out=file)
            )
        wait_for(lambda: all(self._pieces(file) for file in self._files), WAIT_S, "first tokens")

    def expect_all(self) -> None:
        """Each came to its end, none was cut."""
        assert [process.wait(WAIT_S) for process in self._processes] == [0] * len(self._files)
        for file in self._files:
            pieces = self._pieces(file)
            assert pieces[-1] == "[DONE]"
            assert '"finish_reason":"length"' in "".join(pieces[-3:])

    def expect_cut(self) -> None:
        """None came to its end."""
        assert all(process.wait(WAIT_S) for process in self._processes)

    @staticmethod
    def _pieces(file: Path) -> list[str]:
        lines = file.read_text(errors="replace").splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


class Traffic:
    """Chats, one after the other, none tried twice."""

    _LOOP = 'while [ -e "$0" ]; do "$@" >/dev/null && echo answered || echo lost; done'

    def __init__(self, machine: Machine, folder: Path, *, api: Api) -> None:
        self._goes_on = machine.root / "run/traffic"
        self._goes_on.touch()
        self._said = folder / "traffic"
        ask = _curl(8, stream=False, api=api)
        words = ("bash", "-c", self._LOOP, "/run/traffic", *ask)
        self._process = machine.begin(*words, out=self._said)

    def expect_all(self) -> None:
        """Ends it: there were some, and none was lost."""
        self._goes_on.unlink()
        assert self._process.wait(WAIT_S) == 0
        assert set(self._said.read_text().split()) == {"answered"}
