"""RDMA devices of this host that can be used: an open context, a protection domain, an active port with a GID."""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from daemons.transfer.transports.rdma import gid as gids
from daemons.transfer.transports.rdma.messages import DeviceAddress
from daemons.transfer.transports.rdma.verbs import RdmaUnavailable, load

_LINK_ETHERNET = 2
_MAX_PORTS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One port of one adapter. All queue pairs and registrations of it share `domain`."""

    name: str
    port: int
    context: Any
    domain: Any
    gid_index: int
    address: DeviceAddress
    max_message_bytes: int
    max_send_pieces: int
    bytes_per_s: float | None = None
    """Of its link, where that is known."""

    def is_active(self) -> bool:
        """Ask the port; a cut cable shows here at once, a lossy one never."""
        verbs = load()
        try:
            return bool(self.context.query_port(self.port).state == verbs.IBV_PORT_ACTIVE)
        except verbs.PyverbsError:
            return False

    def close(self) -> None:
        """Everything made from it must be closed before."""
        self.domain.close()
        self.context.close()


def why_unavailable() -> str | None:
    """Why this host cannot use RDMA, with the next step; None when it can. Opens and closes the devices."""
    try:
        for device in open_devices():
            device.close()
    except RdmaUnavailable as error:
        return error.message
    return None


def open_devices(
    only: Collection[str] | None = None, ignored: Collection[str] = ()
) -> list[Device]:
    """Usable ports, by name, of `only` these devices; raises RdmaUnavailable with the reason of each port left out."""
    verbs = load()
    try:
        names = sorted(device.name.decode() for device in verbs.get_device_list())
    except verbs.PyverbsError:
        names = []  # libibverbs without the kernel's uverbs: the same as no device
    devices: list[Device] = []
    reasons: list[str] = []
    for name in names if only is None else sorted(set(names) & set(only)):
        if name in ignored:
            reasons.append(f"{name} is ignored by the topology file")
            continue
        for found in _open_ports(name):
            if isinstance(found, Device):
                devices.append(found)
            else:
                reasons.append(found)
    if not devices:
        why = "; ".join(reasons) or "this host has no RDMA device (see `rdma link`)"
        raise RdmaUnavailable(why)
    return devices


def _open_ports(name: str) -> list[Device | str]:
    """A device per active port, or why a port cannot be used."""
    verbs = load()
    found: list[Device | str] = []
    try:
        context = verbs.Context(name=name)
        num_ports = min(int(context.query_device().phys_port_cnt), _MAX_PORTS)
    except verbs.PyverbsError as error:
        return [
            f"{name} cannot be opened ({_first_line(error)}): see the permissions of /dev/infiniband"
        ]
    for port in range(1, num_ports + 1):
        try:
            found.append(_open_port(name, context if not found else verbs.Context(name=name), port))
        except verbs.PyverbsError as error:
            found.append(f"{name} port {port}: {_first_line(error)}")
    if not any(isinstance(one, Device) for one in found):
        context.close()
    return found


def _open_port(name: str, context: Any, port: int) -> Device | str:
    verbs = load()
    attributes = context.query_port(port)
    if int(attributes.state) != verbs.IBV_PORT_ACTIVE:
        return f"{name} port {port} is down: check the cable and `ip link`"
    is_ethernet = int(attributes.link_layer) == _LINK_ETHERNET
    gid = gids.choose_gid(gids.read_gids(name, port), is_ethernet=is_ethernet)
    if gid is None:
        return f"{name} port {port} has no {'RoCE v2 ' if is_ethernet else ''}GID: give its interface an address"
    limits = context.query_device()
    address = DeviceAddress(
        name=name,
        gid=gid.value,
        lid=int(attributes.lid),
        mtu=int(attributes.active_mtu),
        is_ethernet=is_ethernet,
        max_reads=max(1, min(int(limits.max_qp_rd_atom), 255)),
        max_reads_out=max(1, min(int(limits.max_qp_init_rd_atom), 255)),
    )
    return Device(
        name=name,
        port=port,
        context=context,
        domain=verbs.PD(context),
        gid_index=gid.number,
        address=address,
        max_message_bytes=int(attributes.max_msg_sz),
        max_send_pieces=max(1, min(int(limits.max_sge), int(limits.max_sge_rd) or 1, 16)),
    )


def _first_line(error: Exception) -> str:
    return (
        str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else "no reason given"
    )


@functools.cache
def link_names() -> dict[int, str]:
    """Completion status numbers as people know them."""
    return {number: name.removeprefix("IBV_WC_") for number, name in load().status_names.items()}
