"""Wiring of mc-decode: the control server, the engine thread, and the loads, pulls and puts around it.

Generate -> slot -> Prefill || load from the pool -> LayersReady: pull -> first token -> Pulled -> batch -> reply
"""

import os
import socket

from daemons.client.channel_pool import ChannelPool
from daemons.config.mc_decode import DecodeConfig
from daemons.core.errors import ProtocolError
from daemons.core.ids import NodeId, new_epoch
from daemons.engine.instance import open_instance
from daemons.mc_decode.engine_thread import Callbacks, EngineThread
from daemons.mc_decode.request import Request
from daemons.mc_decode.requests import Effects, Requests
from daemons.protocol.base import Message, Ok
from daemons.protocol.node import HelloReply, NodeDescription
from daemons.protocol.request import Cancel, DataProbe, Generate
from daemons.rpc import Call, Loop, Server
from daemons.service.daemon import software_version
from daemons.service.data_probe import DataProbes
from daemons.service.master_link import MasterLink
from daemons.service.metrics import MetricsServer
from daemons.service.paths import runtime_dir
from daemons.transfer import TransferEngine, host_id
from daemons.transfer.topology import host_devices

_DRAIN_S = 25.0


class DecodeApp:
    """One model replica; see the module."""

    def __init__(self, config: DecodeConfig) -> None:
        self.loop = Loop()
        self._config = config
        self._epoch = new_epoch()
        self._transfer = TransferEngine(
            epoch=self._epoch,
            bind_host=config.transfer.host,
            tcp_port=config.transfer.port,
            unix_dir=runtime_dir(config.transfer.unix_dir),
            transports=config.transfer.transports,
        )
        # Listening before the model loads finds a taken address at once.
        self._server = Server(self.loop, config.node.listen, self._hello, self._handle)
        self._instance = open_instance(config.model, config.engine, self._transfer)
        self._channels = ChannelPool(self.loop)
        self._probes = DataProbes(self.loop, self._transfer, config.transfer.transports)
        post = self.loop.call_soon_threadsafe
        self._engine = EngineThread(
            self._instance,
            config.decode.max_batch,
            Callbacks(
                stepped=lambda steps, elapsed_s: post(self._requests.stepped, steps, elapsed_s),
                left=lambda request: post(self._requests.left, request),
                failed=lambda request, error: post(self._requests.failed, request, error),
            ),
        )
        self._requests = Requests(
            self.loop,
            config,
            self._instance,
            Effects(self._join, self._leave, self._tell_master),
            self._channels,
        )
        self._metrics = MetricsServer(config.node.metrics, self._requests.metrics.registry)
        self._link = MasterLink(
            self.loop, config.master.endpoint, self._describe, load=self._requests.load_view
        )
        self.loop.every(1.0, self._requests.refresh_metrics)

    def run(self) -> None:
        self.loop.run()

    def status(self) -> str:
        return (
            f"model={self._instance.model.name} listen={self._server.endpoint} "
            f"live={self._requests.num_live} master={'joined' if self._link.is_joined else 'away'}"
        )

    def drain(self) -> None:
        """Take no more requests; leave once those here have their last token."""
        self._requests.is_draining = True
        deadline_s = self.loop.clock() + _DRAIN_S

        def check() -> None:
            if not self._requests.num_live or self.loop.clock() > deadline_s:
                self.loop.stop()
            else:
                self.loop.call_later(0.05, check)

        self._link.leave(check)

    def close(self) -> None:
        self._link.close()
        self._server.close()
        self._channels.close()
        self._engine.close()
        self._requests.close()
        self._metrics.close()
        self._instance.close()
        self._transfer.close()
        self.loop.close()

    def _handle(self, call: Call) -> None:
        match call.message:
            case Generate() as message:
                self._requests.admit(call, message)
            case Cancel(request_id=request_id):
                self._requests.cancel(request_id)
                call.reply(Ok())
            case DataProbe() as probe:
                self._probes.answer(call, probe)
            case other:
                raise ProtocolError(f"a decode node does not serve {type(other).__name__}")

    def _join(self, request: Request) -> None:
        self._engine.join(request)

    def _leave(self, request: Request) -> None:
        self._engine.leave(request)

    def _tell_master(self, message: Message) -> None:
        if self._link.is_joined:
            self._link.channel.post(message)

    def _hello(self) -> HelloReply:
        return HelloReply(
            node=NodeId(self._config.node.id),
            role="decode",
            incarnation=self._link.incarnation,
            software=software_version(),
            pid=os.getpid(),
        )

    def _describe(self) -> NodeDescription:
        return NodeDescription(
            node=NodeId(self._config.node.id),
            role="decode",
            host=socket.gethostname(),
            host_id=host_id(),
            epoch=self._epoch,
            control=self._server.endpoint,
            pid=os.getpid(),
            software=software_version(),
            data=self._transfer.address,
            model=self._instance.model,
            capacity_tokens=self._instance.arena.capacity_tokens,
            metrics=self._metrics.address,
            devices=host_devices(),
        )
