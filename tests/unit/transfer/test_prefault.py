import os
import threading

import pytest

from daemons.transfer.memory import allocate_shared
from daemons.transfer.prefault import prefault, prefault_in_background


def test_prefault_changes_no_byte_and_can_be_stopped() -> None:
    memory = allocate_shared("test", 9 << 20)
    memory.array[5 << 20] = 7
    assert prefault(memory.array)
    assert memory.array[5 << 20] == 7
    assert int(memory.array.sum()) == 7
    stopped = threading.Event()
    stopped.set()
    assert not prefault(memory.array, stopped)
    prefault_in_background(memory.array, threading.Event()).join()
    memory.close()


def test_a_process_that_is_nicer_already_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root could raise its priority, and the refusal would end the thread."""
    asked: list[int] = []
    monkeypatch.setattr(os, "getpriority", lambda *_: 9)
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, nice: asked.append(nice))
    memory = allocate_shared("test", 1 << 20)
    prefault_in_background(memory.array, threading.Event()).join()
    memory.close()
    assert asked == [9]
