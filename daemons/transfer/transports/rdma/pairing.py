"""Which device of a peer each device here reads from. Pure."""

from collections.abc import Sequence

from daemons.transfer.transports.rdma.gid import common_bits
from daemons.transfer.transports.rdma.messages import DeviceAddress


def pair_devices(
    devices: Sequence[DeviceAddress], peers: Sequence[DeviceAddress]
) -> list[tuple[int, int]]:
    """For each device here the peer's nearest: same kind of link, longest common prefix, then spread evenly.

    Devices of one rail share a subnet, so that their GIDs have more bits in common than those across rails.
    """
    num_taken = [0] * len(peers)
    pairs = []
    for index, device in enumerate(devices):
        fitting = [i for i, peer in enumerate(peers) if peer.is_ethernet == device.is_ethernet]
        if not fitting:
            continue

        def rank(i: int, gid: str = device.gid) -> tuple[int, int, int]:
            return (-common_bits(gid, peers[i].gid), num_taken[i], i)

        best = min(fitting, key=rank)
        num_taken[best] += 1
        pairs.append((index, best))
    return pairs
