"""Which entry of a port's GID table to talk from: pure, so that tables of real servers can be tested as text."""

import ipaddress
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SYSFS = Path("/sys/class/infiniband")
_EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
_ROCE_V2 = "RoCE v2"
_LONGEST_GAP = 16


class Gid(NamedTuple):
    """One address of a port: `number` is its place in the table."""

    number: int
    value: str
    kind: str
    """ "IB/RoCE v1" or "RoCE v2", as sysfs says."""


def read_gids(device: str, port: int, root: Path = SYSFS) -> list[Gid]:
    """The set entries of the table as sysfs shows it: up to 1024 in number, filled from the front, with gaps."""
    folder = root / device / "ports" / str(port)
    found: list[Gid] = []
    number = num_empty = 0
    while num_empty < _LONGEST_GAP:
        try:
            value = (folder / "gids" / str(number)).read_text().strip()
            kind = ""
            if value != _EMPTY:
                kind = (folder / "gid_attrs" / "types" / str(number)).read_text().strip()
        except OSError:  # the end of the table, or EINVAL: never set
            num_empty += 1
        else:
            num_empty = 0 if kind else num_empty + 1
            if kind:
                found.append(Gid(number, value, kind))
        number += 1
    return found


def choose_gid(gids: Iterable[Gid], *, is_ethernet: bool) -> Gid | None:
    """Ethernet: RoCE v2, best with an IPv4 address, link-local only if there is nothing else. InfiniBand: the first."""
    usable = [gid for gid in gids if gid.value != _EMPTY]
    if not is_ethernet:
        return usable[0] if usable else None
    ranked = [gid for gid in usable if gid.kind == _ROCE_V2]
    return min(ranked, key=lambda gid: (_rank(gid.value), gid.number), default=None)


def common_bits(one: str, other: str) -> int:
    """Length of the common prefix of two GIDs: who shares more bits is nearer, in want of netmasks."""
    differ = int(ipaddress.IPv6Address(one)) ^ int(ipaddress.IPv6Address(other))
    return 128 - differ.bit_length()


def _rank(value: str) -> int:
    address = ipaddress.IPv6Address(value)
    if address.ipv4_mapped is not None:
        return 0
    return 2 if address.is_link_local else 1
