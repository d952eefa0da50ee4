"""What mc-prefill and mc-decode have in common: a model replica as a node of the cluster."""

import os
import socket
from collections.abc import Callable
from typing import Final, Literal

from prometheus_client import CollectorRegistry

from daemons.config.common import topology_file
from daemons.config.mc_decode import DecodeConfig
from daemons.config.mc_prefill import PrefillConfig
from daemons.config.secret import mark_of
from daemons.core.errors import McError, Unavailable
from daemons.core.ids import NodeId, new_epoch
from daemons.engine.instance import OpenInstance
from daemons.protocol.base import Message
from daemons.protocol.messages import Reply
from daemons.protocol.node import HelloReply, InstanceLoad, NodeDescription
from daemons.protocol.probe import DataProbe
from daemons.rpc import Call, Loop, Server
from daemons.service.daemon import software_version
from daemons.service.data_probe import DataProbes
from daemons.service.device_reports import DeviceReports, HeldBlocks, Instance
from daemons.service.identity import data_keys, data_secret, master_endpoint, open_identity
from daemons.service.master_link import MasterLink
from daemons.service.metrics import MetricsServer, count_refusals
from daemons.service.paths import runtime_dir
from daemons.transfer import TransferEngine, host_id
from daemons.transfer.topology import host_devices

_DRAIN_POLL_S: Final = 0.05


class InstanceNode:
    """Listens when built, before the model is loaded: a taken address is found at once. `join` once `handle` can."""

    def __init__(
        self,
        role: Literal["prefill", "decode"],
        config: PrefillConfig | DecodeConfig,
        handle: Callable[[Call], object],
        open_instance: OpenInstance,
    ) -> None:
        node = NodeId(config.node.id)
        identity = open_identity(config.security.key_file, node=node, role=role)
        self.loop = Loop(identity=identity)
        self._role = role
        self._config = config
        self._epoch = new_epoch()
        secret = data_secret(identity, config.transfer.secret_file)
        self._secret_mark = mark_of(secret)
        self.transfer = TransferEngine(
            epoch=self._epoch,
            bind_host=config.transfer.host,
            more_hosts=config.transfer.more_hosts,
            tcp_port=config.transfer.port,
            unix_dir=runtime_dir(config.transfer.unix_dir),
            transports=config.transfer.transports,
            secret=secret,
            keys=data_keys(identity),
            topology=topology_file(config.transfer),
        )
        try:
            self._server = Server(self.loop, config.node.listen, self._hello, handle)
            self._metrics = MetricsServer(config.node.metrics)
            self.instance = open_instance(config.model, config.engine, self.transfer)
        except BaseException:
            self.transfer.close()  # or its socket's file stays
            raise
        self.reports = DeviceReports(self.loop, Instance(node, self._epoch))
        self._probes = DataProbes(self.loop, self.transfer, config.transfer.transports)
        self._link: MasterLink | None = None

    def join(
        self,
        load: Callable[[], InstanceLoad],
        registry: CollectorRegistry,
        held: HeldBlocks | None = None,
    ) -> None:
        """Serve /metrics, and tell the master that this node is there, and what its KV arena holds for later."""
        count_refusals(registry, f"mc_{self._role}", self._server)
        self._metrics.show(registry)
        endpoint = master_endpoint(self._config.master.endpoint, self._config.security)
        self._link = MasterLink(
            self.loop,
            endpoint,
            self._describe,
            load=load,
            on_joined=lambda _: self.reports.announce(),
            on_notice=self.reports.obey,
            on_keys=self.transfer.admit,
        )
        if held is not None:
            self.reports.attach(self._link, held)

    def tell_master(self, message: Message) -> None:
        """Best effort; without a master nobody needs to know."""
        if self._link is not None and self._link.is_joined:
            self._link.channel.post(message)

    def ask_master(
        self, message: Message, *, timeout_s: float, on_reply: Callable[[Reply | McError], object]
    ) -> None:
        """Exactly one reply, on the loop: the master's, or an error where it has none."""
        error: McError = Unavailable("the master is away")
        if self._link is not None and self._link.is_joined:
            try:
                self._link.channel.request(message, timeout_s=timeout_s, on_reply=on_reply)
            except McError as refused:
                error = refused
            else:
                return
        self.loop.call_later(0.0, on_reply, error)

    def answer_probe(self, call: Call, probe: DataProbe) -> None:
        self._probes.answer(call, probe)

    def status(self, num_live: int) -> str:
        is_joined = self._link is not None and self._link.is_joined
        return (
            f"model={self.instance.model.name} listen={self._server.endpoint} "
            f"live={num_live} master={'joined' if is_joined else 'away'}"
        )

    def drain(self, num_live: Callable[[], int], drain_s: float) -> None:
        """Leave the cluster, then stop the loop once nothing lives here any more, or `drain_s` have passed."""
        deadline_s = self.loop.clock() + drain_s

        def check() -> None:
            if not num_live() or self.loop.clock() > deadline_s:
                self.loop.stop()
            else:
                self.loop.call_later(_DRAIN_POLL_S, check)

        if self._link is not None:
            self._link.leave(check)

    def stop_serving(self) -> None:
        """The first half of closing; threads that use the instance end between it and `close`."""
        if self._link is not None:
            self._link.close()
        self._server.close()

    def close(self) -> None:
        self._metrics.close()
        self.instance.close()
        self.transfer.close()
        self.loop.close()

    def _hello(self) -> HelloReply:
        assert self._link is not None, "nothing is answered before the loop runs"
        return HelloReply(
            node=NodeId(self._config.node.id),
            role=self._role,
            incarnation=self._link.incarnation,
            software=software_version(),
            pid=os.getpid(),
        )

    def _describe(self) -> NodeDescription:
        return NodeDescription(
            node=NodeId(self._config.node.id),
            role=self._role,
            host=socket.gethostname(),
            host_id=host_id(),
            epoch=self._epoch,
            control=self._server.told,
            pid=os.getpid(),
            software=software_version(),
            data=self.transfer.address,
            model=self.instance.model,
            capacity_tokens=self.instance.arena.capacity_tokens,
            metrics=self._metrics.address,
            devices=host_devices(
                wants_rdma="rdma" in self._config.transfer.transports,
                override=topology_file(self._config.transfer),
            ),
            ticks_ms=self.transfer.ticks_ms(),
            secret_mark=self._secret_mark,
        )
