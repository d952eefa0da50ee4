import subprocess
import sys
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


_AS_NOBODY = """
import os, sys, threading
from daemons.transfer.memory import allocate_shared
from daemons.transfer.prefault import prefault_in_background
os.nice(9)
if os.getuid() == 0:
    os.setuid(65534)
threading.excepthook = lambda failed: os._exit(1)
memory = allocate_shared("test", 1 << 20)
prefault_in_background(memory.array, threading.Event()).join()
"""


def test_a_process_that_is_already_nicer_prefaults_too() -> None:
    """Without root, a priority cannot be raised."""
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY], check=False, timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
