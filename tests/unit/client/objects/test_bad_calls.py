"""What a program got wrong is said at once, as Rejected or ConfigError: no master is asked, and none is there."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from daemons.client.objects.steps import Closed
from daemons.client.objects.store import Store
from daemons.core.errors import ConfigError, Rejected

NOBODY = "tcp://127.0.0.1:1"
LONG_S = 600.0
"""Whoever asked the master would wait so long."""


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(NOBODY, timeout_s=LONG_S) as opened:
        yield opened


@pytest.mark.parametrize(
    "master",
    ["127.0.0.1:7700", "http://127.0.0.1:7700", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", ""],
)
def test_what_is_no_endpoint_is_refused_before_anybody_is_asked(master: str) -> None:
    with pytest.raises(ConfigError, match="write tcp://HOST:PORT"):
        Store(master)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda store: store.get(5), "a name is str or bytes, not int"),
        (lambda store: store.exists(None), "a name is str or bytes, not NoneType"),
        (lambda store: store.get_many("abc"), "as a list of them"),
        (lambda store: store.delete_many(b"abc"), "as a list of them"),
        (lambda store: store.put_many({"ab": b"1"}), "pairs of name and value"),
        (lambda store: store.replace_many(["ab"]), "pairs of name and value"),
        (lambda store: store.get_into_many(["ab"]), "pairs of name and target"),
        (lambda store: store.get_into_many({"ab": bytearray(1)}), "pairs of name and target"),
    ],
)
def test_what_is_no_name_or_no_pair_is_said(
    store: Store, call: Callable[[Store], Any], why: str
) -> None:
    with pytest.raises(Rejected, match=why):
        call(store)


def test_closed_store_says_so_without_trying_again() -> None:
    store = Store(NOBODY, timeout_s=LONG_S)
    store.close()
    begun_s = time.monotonic()
    with pytest.raises(Closed, match=r"^this store is closed$"):
        store.get("a")
    assert time.monotonic() - begun_s < LONG_S / 2
