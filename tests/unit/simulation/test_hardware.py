"""Hardware profiles: the fit that comes with us, and what is refused."""

from importlib import resources

import pytest

from daemons.core.errors import ConfigError
from daemons.simulation.hardware import DEFAULT, find_profile, parse_profile, profile_names

PREFILL_S = {8192: 1.005, 16384: 2.053, 32768: 4.478, 65536: 10.585, 131072: 27.52}
"""Figure 14a of the FAST'25 paper."""


@pytest.mark.parametrize(("num_tokens", "published_s"), PREFILL_S.items())
def test_the_profile_gives_the_published_prefill_times(num_tokens: int, published_s: float) -> None:
    profile = find_profile(DEFAULT)
    ours_s = profile.prefill_s(num_tokens, 0) - profile.prefill.fixed_s
    assert ours_s == pytest.approx(published_s, rel=0.04)


def test_chunks_add_up_to_the_whole() -> None:
    profile = find_profile(DEFAULT)
    parts_s = sum(profile.chunk_s(start, 512) for start in range(0, 8192, 512))
    assert parts_s + profile.prefill.fixed_s == pytest.approx(profile.prefill_s(8192, 0))


def test_every_profile_that_comes_with_us_can_be_read() -> None:
    assert DEFAULT in profile_names()
    for name in profile_names():
        assert find_profile(name).kv.bytes_per_token > 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("token_s = 1.147e-4", "token_s = 0", "token_s"),
        ("network = 87e9", "network = 0", "network"),
        ("network = 87e9", "network = inf", "network"),
        ("network = 87e9", "network = nan", "network"),
        ("network = 87e9", "networks = 87e9", "network"),
        ("fixed_s = 0.06", 'fixed_s = "a"', "fixed_s"),
        ("fixed_s = 0.06", "fixed_s = 1e300", "fixed_s"),
        ("fixed_s = 0.06", "fixed_s = 5e-324", "fixed_s"),
        ("fixed_s = 0.06", "fixed_s = " + "9" * 5000, "digits"),
        ("fixed_s = 0.06", "fixed_s = " + "[" * 5000, "nested"),
        ("[decode]", "[decode", "profile x"),
    ],
)
def test_a_bad_profile_is_refused_by_key(old: str, new: str, said: str) -> None:
    folder = resources.files("daemons.simulation") / "hardware_profiles"
    text = (folder / f"{DEFAULT}.toml").read_text()
    assert old in text
    with pytest.raises(ConfigError, match="profile x") as error:
        parse_profile(text.replace(old, new, 1), "x")
    assert said in error.value.message


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(ConfigError, match=DEFAULT):
        find_profile("no-such-machine")
