"""What perftest's ib_read_bw and ib_write_bw reach on this host: the limit beside an RDMA figure, where installed."""

import shutil
import socket
import subprocess
import time
from typing import Final, Literal

from daemons.transfer.transports.rdma.device import Device, open_devices

_TIMEOUT_S: Final = 120.0
_CONNECT_S: Final = 10.0
_PAUSE_S: Final = 0.2


def bandwidth(
    operation: Literal["read", "write"], size_bytes: int, num_messages: int
) -> float | None:
    """Bytes a second between two processes over this host's first RDMA device; None where it cannot be measured."""
    program = shutil.which(f"ib_{operation}_bw")
    if program is None:
        return None
    device = _first_device()
    arguments = [
        *(program, "-F", "-d", device.name, "-i", str(device.port), "-x", str(device.gid_index)),
        *("-s", str(size_bytes), "-n", str(num_messages), "-p", str(_free_port())),
    ]
    server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + _CONNECT_S
        # The server says nothing when it listens: clients are refused until then.
        while server.poll() is None and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
            done = subprocess.run(
                [*arguments, "127.0.0.1"],
                capture_output=True,
                text=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
            found = parse_bandwidth(done.stdout, size_bytes)
            if found is not None:
                return found
    except subprocess.TimeoutExpired:
        return None
    finally:
        server.kill()
        server.wait()
    return None


def parse_bandwidth(output: str, size_bytes: int) -> float | None:
    """The average of the row "bytes iterations peak average rate"; its MB are 2**20 bytes."""
    for line in output.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0] == str(size_bytes):
            try:
                return float(words[3]) * 2**20
            except ValueError:
                return None
    return None


def _first_device() -> Device:
    first, *others = open_devices()
    for device in (first, *others):
        device.close()
    return first


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
