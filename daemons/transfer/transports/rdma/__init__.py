"""READ and WRITE over RDMA verbs (pyverbs): queue pairs, keys, paths over several devices."""

from daemons.transfer.transports.rdma.device import why_unavailable
from daemons.transfer.transports.rdma.queue_pair import Retries
from daemons.transfer.transports.rdma.transport import RdmaTransport, open_rdma
from daemons.transfer.transports.rdma.verbs import RdmaUnavailable

__all__ = ["RdmaTransport", "RdmaUnavailable", "Retries", "open_rdma", "why_unavailable"]
