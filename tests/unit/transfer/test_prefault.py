import threading

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
