"""Who waits for whom, and what is taken over."""

from types import SimpleNamespace

import pytest

from daemons.core.clock import ManualClock
from daemons.mc_prefill.siblings import Siblings, is_making
from daemons.rpc import Loop


class FakeJob(SimpleNamespace):
    """What Siblings looks at."""

    def reuse(self, matched: list[str]) -> None:
        self.request.matched = matched


def job(hashes: str, *, matched: int = 0, cache: str = "use", is_published: bool = True) -> FakeJob:
    target = object() if is_published else None
    request = SimpleNamespace(
        hashes=list(hashes), matched=list(hashes[:matched]), cache=cache, put_target=target
    )
    return FakeJob(
        request=request,
        sibling="none",
        is_ended=False,
        is_running=True,
        has_puts=False,
        computed_s=None,
    )


def computed(made: FakeJob, at_s: float, *, has_puts: bool) -> FakeJob:
    made.is_running, made.computed_s, made.has_puts = False, at_s, has_puts
    return made


@pytest.mark.parametrize(
    ("other", "mine", "waits"),
    [
        (job("abcdef"), job("abcdxy"), True),
        (job("abcdef"), job("abcdxy", matched=3), False),
        (job("abcdef"), job("a"), False),
        (job("abcdef"), job("xycdef"), False),
        (job("abcdef", cache="bypass"), job("abcdef"), False),
        (job("abcdef"), job("abcdef", cache="bypass"), False),
        (job("abcdef", is_published=False), job("abcdef"), False),
    ],
)
def test_who_lacks_blocks_that_are_being_made_waits(
    other: FakeJob, mine: FakeJob, waits: bool
) -> None:
    assert is_making(other, mine) is waits  # type: ignore[arg-type]


@pytest.mark.parametrize(("found", "kept"), [("abcd", "abcd"), ("", "ab"), (None, "ab")])
def test_what_was_made_meanwhile_is_reused_and_a_shorter_answer_is_not(
    found: str | None, kept: str
) -> None:
    clock = ManualClock()
    loop, ready, reused = Loop(clock), list[str](), list[int]()
    siblings = Siblings(
        loop,
        lambda _, on_found: on_found(None if found is None else list(found)),
        lambda: ready.append("again"),
        reused.append,
    )
    first, second = job("abcdef"), job("abcdxy", matched=2)
    assert siblings.is_ready(first, [first])
    assert not siblings.is_ready(second, [first, second])
    computed(first, clock(), has_puts=False)
    assert not siblings.is_ready(second, [first, second])
    clock.advance(0.1)
    loop.run_once(0)
    assert ready == ["again"]
    assert siblings.is_ready(second, [first])
    assert reused == ([2] if found else [])
    assert "".join(second.request.matched) == kept
    loop.close()


@pytest.mark.parametrize("is_put", [True, False])
def test_blocks_on_their_way_to_the_pool_are_waited_for_and_not_without_end(is_put: bool) -> None:
    clock = ManualClock()
    loop, ready, reused = Loop(clock), list[str](), list[int]()
    siblings = Siblings(
        loop,
        lambda _, on_found: on_found(list("abcd" if is_put else "")),
        lambda: ready.append("again"),
        reused.append,
    )
    first, second = job("abcdef"), job("abcdxy")
    assert not siblings.is_ready(second, [first])
    computed(first, clock(), has_puts=True)
    assert not siblings.is_ready(second, [first])
    clock.advance(0.5)
    loop.run_once(0)
    assert ready == []
    if is_put:
        first.has_puts = False
        assert not siblings.is_ready(second, [first])
    clock.advance(0.6)
    loop.run_once(0)
    assert ready == ["again"]
    assert siblings.is_ready(second, [first])
    assert reused == ([4] if is_put else [])
    clock.advance(2)
    loop.run_once(0)
    assert ready == ["again"]
    loop.close()
