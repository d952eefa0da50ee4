"""The jobs of a prefill node without a model or sockets: the test is the model, the copier and whoever asks."""

from collections.abc import Callable
from types import SimpleNamespace

from daemons.client.prefix_load import PrefixLoader
from daemons.config.mc_prefill import PrefillSection
from daemons.core.clock import ManualClock
from daemons.core.errors import McError
from daemons.core.ids import RequestId
from daemons.engine.arena.kv_arena import KvArena
from daemons.engine.arena.slot_copy import SlotCopy
from daemons.engine.geometry import KvGeometry
from daemons.engine.instance import Instance
from daemons.mc_prefill.device_tier import DeviceTier
from daemons.mc_prefill.job import Computed, Job
from daemons.mc_prefill.jobs import Effects, Jobs, Ways
from daemons.protocol.packed import BlockLocations
from daemons.protocol.prefix_hash import block_hashes
from daemons.protocol.request import Prefill, SamplingParams, Timing
from daemons.rpc import Loop

NAMESPACE = bytes(16)
GEOMETRY = KvGeometry(num_layers=1, num_kv_heads=1, head_dim=4, dtype="float32", block_tokens=64)


class Call:
    """Keeps what was said; `is_peer_gone` makes the next word fail, as a send does."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.said: list[object] = []
        self.error: McError | None = None
        self.is_done = self.is_peer_gone = False
        self.on_gone = lambda: None

    def part(self, message: object) -> None:
        if not self.is_done:
            self._say(message)

    def reply(self, message: object) -> None:
        if not self.is_done:
            self.is_done = True
            self._say(message)

    def fail(self, error: McError) -> None:
        if not self.is_done:
            self.error = error
        self.reply(error)

    def _say(self, message: object) -> None:
        if not self.is_peer_gone:
            self.said.append(message)
            return
        self.is_done = True
        gone, self.on_gone = self.on_gone, lambda: None
        gone()


class Publisher:
    def __init__(self) -> None:
        self.wanted: list[Callable[[], bool]] = []
        self.offers: list[tuple[list[object], object]] = []

    def offer(
        self,
        target: object,
        blocks: list[object],
        on_done: object,
        is_wanted: Callable[[], bool],
    ) -> None:
        self.offers.append((blocks, on_done))
        self.wanted.append(is_wanted)


class Told:
    """Keeps what the master would be told."""

    def __init__(self) -> None:
        self.held: set[bytes] = set()

    def sealed(self, hashes: list[bytes]) -> None:
        assert not self.held & set(hashes), "told twice"
        self.held |= set(hashes)

    def freed(self, hashes: list[bytes]) -> None:
        assert self.held >= set(hashes), "never told"
        self.held -= set(hashes)


class Copier:
    """Copies at the test's word."""

    def __init__(self) -> None:
        self.started: list[tuple[SlotCopy, Callable[[], object]]] = []

    def start(self, copy: SlotCopy, on_end: Callable[[], object]) -> None:
        self.started.append((copy, on_end))


class Bench:
    """Jobs over an arena of two chunks; the test is the model."""

    def __init__(self, retain_fraction: float = 0.0, num_tokens: int = 512) -> None:
        self.clock = ManualClock()
        self.loop = Loop(self.clock)
        self.computing: list[Job] = []
        self.publisher = Publisher()
        self.advanced: list[int] = []
        self.arena = KvArena(GEOMETRY, num_tokens)
        generations = SimpleNamespace(
            advance=self.advanced.append, guard=lambda index: f"guard of {index}"
        )
        model = SimpleNamespace(
            name="m", namespace=NAMESPACE, max_context_tokens=1024, vocab_size=100,
            block_tokens=64, is_reuse_safe=True,
        )  # fmt: skip
        instance = Instance(None, None, None, generations, self.arena, None, model)
        self.loader = PrefixLoader(self.loop, None, None, num_workers=1, timeout_s=1.0)
        self.looked_up: list[int] = []
        self.in_pool: list[object] | None = []
        """What the master finds of any chain; None: it does not say."""
        effects = Effects(self.computing.append, self._withdraw, lambda *_: None, self._match)
        config = PrefillSection(max_queued=600, hold_s=5.0)
        self.told = Told()
        self.copier = Copier()
        self.tier = DeviceTier(instance, retain_fraction, self.copier, self.told, self.clock)
        ways = Ways(self.publisher, self.loader, self.tier)
        self.jobs = Jobs(self.loop, config, instance, effects, ways)
        self._num_requests = 0

    def admit(self, num_tokens: int = 500, timeout_s: float = 600.0, **more: object) -> Call:
        self._num_requests += 1
        tokens = [1] * num_tokens
        fields: dict[str, object] = {
            "request_id": RequestId(f"r{self._num_requests}"),
            "model": "m",
            "namespace": NAMESPACE,
            "tokens": tokens,
            "hashes": block_hashes(NAMESPACE, tokens, 64),
            "sampling": SamplingParams(max_tokens=1),
            "matched": BlockLocations(),
            "put_target": None,
            "cache": "use",
            "tenant": "",
        }
        call = Call(self.clock() + timeout_s)
        self.jobs.admit(call, Prefill(**(fields | more)))
        return call

    def finish(self) -> Job:
        """The model is through with the prompt it has."""
        job = self.computing.pop(0)
        self.jobs.computed(job, Computed(job, 7, Timing(compute_s=0.1)))
        return job

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.loop.run_once(0)

    def _match(
        self, hashes: list[object], on_found: Callable[[list[object] | None], object]
    ) -> None:
        self.looked_up.append(len(hashes))
        on_found(None if self.in_pool is None else self.in_pool[: len(hashes)])

    def _withdraw(self, job: Job) -> bool:
        """The first is begun, the others wait."""
        if job in self.computing[1:]:
            self.computing.remove(job)
            return True
        return False
