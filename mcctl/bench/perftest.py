"""What perftest's ib_read_bw and ib_write_bw reach on this host: the limit beside an RDMA figure, where installed."""

import shutil
import socket
import subprocess
import time
from typing import Final, Literal

from daemons.transfer.transports.rdma.device import Device, open_devices

_TIMEOUT_S: Final = 120.0
_CONNECT_S: Final = 60.0
_PAUSE_S: Final = 0.2


def bandwidth(
    operation: Literal["read", "write"],
    size_bytes: int,
    num_messages: int,
    device_names: tuple[str, str] | None = None,
    *,
    depth: int | None = None,
) -> float | None:
    """Bytes a second between two processes on this host, over the devices of client and server.

    Without names both use the first device. `depth` messages are under way at once; None: as many as it likes best.
    None where it cannot be measured.
    """
    program = shutil.which(f"ib_{operation}_bw")
    if program is None:
        return None
    client, server_side = _devices(device_names)
    common = [
        program,
        "-F",
        "-s",
        str(size_bytes),
        "-n",
        str(num_messages),
        "-p",
        str(_free_port()),
        *([] if depth is None else ["-t", str(depth)]),
    ]
    arguments = [*common, *_arguments(client), "127.0.0.1"]
    server = subprocess.Popen(
        [*common, *_arguments(server_side)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline_s = time.monotonic() + _CONNECT_S
        # The server says nothing when it listens: clients are refused until then.
        while server.poll() is None and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
            done = subprocess.run(
                arguments, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
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
    """The average of the row "bytes iterations peak average rate"; its MB are 2**20 bytes. None where it says 0.00."""
    for line in output.splitlines():
        words = line.split()
        if len(words) >= 4 and words[0] == str(size_bytes):
            try:
                return float(words[3]) * 2**20 or None
            except ValueError:
                return None
    return None


def _arguments(device: Device) -> list[str]:
    return ["-d", device.name, "-i", str(device.port), "-x", str(device.gid_index)]


def _devices(names: tuple[str, str] | None) -> tuple[Device, Device]:
    devices = open_devices(names)
    for device in devices:
        device.close()
    by_name = {device.name: device for device in reversed(devices)}
    return (devices[0], devices[0]) if names is None else (by_name[names[0]], by_name[names[1]])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
