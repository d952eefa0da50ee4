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
    return FakeJob(request=request, sibling="none", is_ended=False)


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


@pytest.mark.parametrize(("found", "kept"), [("abcd", "abcd"), ("", "ab")])
def test_what_was_made_meanwhile_is_reused_and_a_shorter_answer_is_not(
    found: str, kept: str
) -> None:
    clock = ManualClock()
    loop, ready, reused = Loop(clock), list[str](), list[int]()
    siblings = Siblings(
        loop,
        lambda _, on_found: on_found(list(found)),
        lambda: ready.append("again"),
        reused.append,
    )
    first, second = job("abcdef"), job("abcdxy", matched=2)
    assert siblings.is_ready(first, [])
    assert not siblings.is_ready(second, [first])
    assert not siblings.is_ready(second, [])
    clock.advance(0.1)
    loop.run_once(0)
    assert ready == ["again"]
    assert siblings.is_ready(second, [first])
    assert reused == ([2] if found else [])
    assert "".join(second.request.matched) == kept
    loop.close()
