"""AsyncStore is Store, awaited."""

import inspect

from daemons.client.objects.async_store import AsyncStore
from daemons.client.objects.store import Store

UNAWAITED = {"register", "deregister"}
"""They ask nobody."""


def verbs(of: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(of, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def test_every_verb_is_there_with_the_same_parameters() -> None:
    ours, theirs = verbs(AsyncStore), verbs(Store)
    assert list(ours) == list(theirs)
    for name, signature in theirs.items():
        assert list(ours[name].parameters.values()) == list(signature.parameters.values()), name


def test_all_but_what_asks_nobody_is_awaited() -> None:
    for name in verbs(AsyncStore).keys() - UNAWAITED - {"__init__"}:
        method = getattr(AsyncStore, name)
        assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method), name
