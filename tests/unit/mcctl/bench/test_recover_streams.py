"""What counts as silence of a request after a daemon was hurt."""

from mcctl.bench.recover_streams import Watched


def test_a_stream_that_goes_on_was_silent_from_the_kill_to_its_next_word() -> None:
    watched = Watched(True, 0.0, [1.0, 1.1, 3.1, 3.2], 3.3)
    assert watched.silence_s(1.5) == 3.1 - 1.5
    assert watched.silence_s(0.0) == 2.0


def test_one_that_ended_without_a_word_was_silent_until_its_end() -> None:
    assert Watched(False, 2.0, [], 2.75, "refused").silence_s(1.0) == 0.75


def test_what_was_over_before_the_kill_was_not_silent_after_it() -> None:
    assert Watched(True, 0.0, [0.5], 0.9).silence_s(1.0) == 0.0


def test_a_request_that_still_waits_has_no_silence_that_ended() -> None:
    assert Watched(True, 0.0, [0.5]).silence_s(0.6) == 0.0
