"""What a cache node listens on: control port, metrics, data port. All of it is taken before any memory is."""

import os
from collections.abc import Callable

from daemons.config.common import topology_file
from daemons.config.mc_cachenode import CachenodeConfig
from daemons.config.secret import mark_of
from daemons.core.ids import NodeId, new_epoch
from daemons.mc_cachenode.metrics import CachenodeMetrics
from daemons.protocol.node import HelloReply, NodeDescription
from daemons.protocol.segment import SegmentDescription
from daemons.rpc import Call, Loop, Server
from daemons.service.daemon import software_version
from daemons.service.identity import data_keys, data_secret
from daemons.service.metrics import MetricsServer, count_refusals
from daemons.service.paths import runtime_dir
from daemons.transfer import TransferEngine, host_id
from daemons.transfer.topology import host_devices


class Ports:
    """Open when made. A start that fails leaves none of them behind, nor memory."""

    def __init__(
        self,
        config: CachenodeConfig,
        loop: Loop,
        metrics: CachenodeMetrics,
        hello: Callable[[], HelloReply],
        handle: Callable[[Call], object],
    ) -> None:
        transfer = config.transfer
        self._node = NodeId(config.node.id)
        self._domain = config.node.domain
        self.epoch = new_epoch()
        self.server = Server(loop, config.node.listen, hello, handle)
        count_refusals(metrics.registry, "mc_cachenode", self.server)
        self._metrics_server = MetricsServer(config.node.metrics, metrics.registry)
        topology = topology_file(transfer)
        secret = data_secret(loop.identity, transfer.secret_file)
        self._secret_mark = mark_of(secret)
        self.engine = TransferEngine(
            epoch=self.epoch,
            bind_host=transfer.host,
            more_hosts=transfer.more_hosts,
            tcp_port=transfer.port,
            unix_dir=runtime_dir(transfer.unix_dir),
            transports=transfer.transports,
            secret=secret,
            keys=data_keys(loop.identity),
            topology=topology,
        )
        self.outside = self.engine
        """For what clients put: with nothing that opens others' memory, for a client chooses what is pulled."""
        if loop.identity is not None:
            self.outside = TransferEngine(transports=("shm", "tcp"))
        self._devices = host_devices(wants_rdma="rdma" in transfer.transports, override=topology)

    def describe(self, segments: list[SegmentDescription]) -> NodeDescription:
        """What the master is told of this node."""
        return NodeDescription(
            node=self._node,
            role="cachenode",
            host=os.uname().nodename,
            host_id=host_id(),
            epoch=self.epoch,
            control=self.server.told,
            pid=os.getpid(),
            software=software_version(),
            data=self.engine.address,
            segments=segments,
            metrics=self._metrics_server.address,
            devices=self._devices,
            ticks_ms=self.engine.ticks_ms(),
            secret_mark=self._secret_mark,
            domain=self._domain,
        )

    def close_data(self) -> None:
        """The engines, whose threads read the segments."""
        self.engine.close()
        if self.outside is not self.engine:
            self.outside.close()

    def close(self) -> None:
        self._metrics_server.close()
