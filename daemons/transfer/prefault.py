"""Putting a mapping's pages into this process's page table before they are needed.

The first touch of each 4 KiB page costs about a microsecond in a fault, twice what copying it does. Doing it ahead,
at low priority and in small steps, takes that off the first put and the first read of every page.
"""

import ctypes
import os
import threading

from daemons.core.units import MIB
from daemons.transfer.strided import ByteArray

_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
_STEP_BYTES = 4 * MIB
"""One step holds the address space's lock for about 2 ms: other threads may want to map something."""

_BACKGROUND_NICE = 5

_PAGE = os.sysconf("SC_PAGESIZE")
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def prefault(memory: ByteArray, stop: threading.Event | None = None) -> bool:
    """Populate a whole mapping; page aligned, as mmap gives it. False on kernels before 5.14, or when stopped.

    Changes no byte. Releases the GIL (ctypes does).
    """
    advice = _MADV_POPULATE_WRITE if memory.flags.writeable else _MADV_POPULATE_READ
    start, size = memory.ctypes.data, memory.nbytes
    assert start % _PAGE == 0, "not a mapping of its own"
    for offset in range(0, size, _STEP_BYTES):
        if stop is not None and stop.is_set():
            return False
        if _madvise(start + offset, min(_STEP_BYTES, size - offset), advice):
            return False
    return True


def prefault_in_background(memory: ByteArray, stop: threading.Event) -> threading.Thread:
    """The same on a thread that yields to others; it keeps the mapping alive until it ends."""

    def run() -> None:
        thread_id = threading.get_native_id()
        # Nobody but root may raise a priority, not even back to where this asks for.
        nice = max(_BACKGROUND_NICE, os.getpriority(os.PRIO_PROCESS, thread_id))
        os.setpriority(os.PRIO_PROCESS, thread_id, nice)
        prefault(memory, stop)

    thread = threading.Thread(target=run, name="mc-prefault", daemon=True)
    thread.start()
    return thread
