"""What `mcctl simulate plan` concludes from its tables, in words."""

from collections.abc import Callable

import msgspec
import pytest

from daemons.simulation.capacity import CapacityPoint
from daemons.simulation.hardware import DEFAULT, find_profile
from daemons.simulation.max_rate import RatePoint, max_requests_per_s
from daemons.simulation.outcome import SimulationResult, Spread, TierUse
from daemons.simulation.sizing import MemoryChoice
from mcctl.views.plan import PlanResult, show_plan

PROFILE = find_profile(DEFAULT)
TOKENS_A_TB = round(1e12 / PROFILE.kv.bytes_per_token)
Shown = Callable[[PlanResult], str]


def run(cluster: str, goodput: float, mean_ttft_s: float) -> SimulationResult:
    ttft = Spread(mean=mean_ttft_s, p50=mean_ttft_s, p90=mean_ttft_s, p99=mean_ttft_s)
    return SimulationResult(
        cluster=cluster,
        policy="time",
        num_prefills=3,
        num_requests=100,
        num_rejected=0,
        ttft_s=ttft,
        tbt_s=ttft,
        goodput=goodput,
        requests_per_s=1.0,
        reused_fraction=0.5,
        remote_fraction=0.1,
        prefill_s_per_request=1.0,
        prediction_error=0.0,
        network_gb=1.0,
        makespan_s=10.0,
        load=[],
        ttft_percentiles_s=[],
        tbt_percentiles_s=[],
        tiers=[TierUse(tier="dram", hit_fraction=0.25, capacity_gb=1.0)],
    )


def choice(name: str, dram_tb: int, ssd_tb: int) -> MemoryChoice:
    return MemoryChoice(
        name=name,
        dram_tokens=dram_tb * TOKENS_A_TB,
        ssd_tokens=ssd_tb * TOKENS_A_TB,
        price=1.0,
        run=run("3P+1D", 0.9, 2.0),
    )


def plan(
    curve: list[CapacityPoint] | None = None,
    reuse_limit: float = 0.5,
    rates: list[RatePoint] | None = None,
) -> PlanResult:
    return PlanResult(
        num_requests=100,
        requests_per_s=2.0,
        mean_input_tokens=4000.0,
        mean_output_tokens=300.0,
        distinct_tokens=TOKENS_A_TB,
        reuse_limit=reuse_limit,
        hit_curve=curve or [CapacityPoint(capacity_tokens=0, hit_fraction=reuse_limit)],
        clusters=[run("2P+2D", 0.5, 1.0), run("3P+1D", 0.9, 2.0)],
        best_cluster="3P+1D",
        rates=rates or [],
        max_requests_per_s=max_requests_per_s(rates or []),
        network_gbit_s=12.3,
        memory=[choice("all in DRAM", 4, 0), choice("with an SSD", 1, 8)],
        best_memory="with an SSD",
    )


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    monkeypatch.setenv("COLUMNS", "200")

    def show(result: PlanResult) -> str:
        show_plan(result, PROFILE, nodes=4)
        return " ".join(capsys.readouterr().out.split())

    return show


@pytest.mark.parametrize(("reuse_limit", "word"), [(0.5, "yes"), (0.05, "yes"), (0.04, "hardly")])
def test_a_cache_is_worth_it_where_enough_comes_again(
    shown: Shown, reuse_limit: float, word: str
) -> None:
    said = shown(plan(reuse_limit=reuse_limit))
    assert f"is a cache worth it? {word}: {reuse_limit:.1%} of prompt tokens came before" in said
    assert "all that is new is 1.0 TB of KV" in said


def test_the_answers_are_those_of_the_best_cluster_and_the_best_memory(shown: Shown) -> None:
    said = shown(plan())
    assert "3P+1D: 90.0% of requests within both objectives" in said
    assert "how much memory? 1.0 TB of DRAM and 8.0 TB of SSD in each prefill node" in said
    assert "each node sends 12.3 Gbit/s on average" in said
    assert "take 3P+1D;" in said
    assert "shortest mean TTFT, 2.00 s." in said
    assert "each way to equip its 3 prefill nodes" in said


def test_memory_without_an_ssd_is_told_without_one(shown: Shown) -> None:
    result = plan()
    (row,) = [each for each in result.memory if each.name == "all in DRAM"]
    bare = PlanResult(
        **{name: getattr(result, name) for name in PlanResult.__struct_fields__}
        | {"best_memory": row.name}
    )
    assert "buy 4.0 TB of DRAM for each prefill node" in shown(bare)


def test_a_column_has_one_unit(shown: Shown) -> None:
    result = plan()
    clusters = [run("1P+3D", 0.5, 0.04), run("2P+2D", 0.5, 5.0), run("3P+1D", 0.9, 700.0)]
    memory = [choice("all in DRAM", 4, 0), choice("with an SSD", 0, 8)]
    small = msgspec.structs.replace(memory[1], dram_tokens=TOKENS_A_TB // 100)
    said = shown(msgspec.structs.replace(result, clusters=clusters, memory=[memory[0], small]))
    for cell in (
        "0.0400 s",
        "5.00 s",
        "700.00 s",
        "40.0 ms",
        "5,000.0 ms",
        "4,000.0 GB",
        "10.0 GB",
    ):
        assert f" {cell} " in said
    assert " min " not in said


def test_the_smallest_cache_that_finds_nearly_all_is_enough(shown: Shown) -> None:
    curve = [
        CapacityPoint(capacity_tokens=tokens, hit_fraction=found, eviction=eviction)
        for eviction, founds in (("lru", (0.2, 0.47, 0.48, 0.49)), ("lfu", (0.2,) * 4))
        for tokens, found in zip((1_000_000, 2_000_000, 4_000_000, 0), founds, strict=True)
    ]
    assert "Conclude: 2 M tokens find 47.0%; what is larger finds hardly more." in shown(
        plan(curve)
    )


@pytest.mark.parametrize(
    ("goodputs", "told"),
    [
        ((), "all of these come at once: no rate can be told"),
        ((0.8, 0.5), "not even 1.00 with 90% within both objectives"),
        ((0.95, 0.9, 0.5), "2.00 like these on 3P+1D, 90% of them within both objectives"),
        ((0.95, 0.9), "at least 2.00 like these on 3P+1D"),
    ],
)
def test_the_rate_that_is_served_is_told(
    shown: Shown, goodputs: tuple[float, ...], told: str
) -> None:
    rates = [
        RatePoint(requests_per_s=float(rate), goodput=goodput)
        for rate, goodput in enumerate(goodputs, 1)
    ]
    assert f"how many requests a second? {told}" in shown(plan(rates=rates))
