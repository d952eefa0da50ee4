"""Wiring of mc-prefill: the control server, the model thread, and the loads and puts around it.

Prefill -> slot -> PrefillStarted -> load || compute -> LayersReady... -> PrefillReply -> Pulled -> release
"""

import os
import socket

from daemons.client.channel_pool import ChannelPool
from daemons.client.prefix_load import PrefixLoader
from daemons.client.publisher import Publisher
from daemons.client.store import BlockReader
from daemons.config.mc_prefill import PrefillConfig
from daemons.core.errors import McError, ProtocolError
from daemons.core.ids import NodeId, new_epoch
from daemons.engine.instance import open_instance
from daemons.mc_prefill.job import Computed, Job, JobHooks
from daemons.mc_prefill.jobs import Effects, Jobs, Ways
from daemons.mc_prefill.model_thread import ModelThread
from daemons.protocol.base import Ok
from daemons.protocol.block import BadReplica, BlockLocation
from daemons.protocol.node import HelloReply, NodeDescription
from daemons.protocol.request import Cancel, DataProbe, Prefill, Pulled
from daemons.rpc import Call, Loop, Server
from daemons.service.daemon import software_version
from daemons.service.data_probe import DataProbes
from daemons.service.master_link import MasterLink
from daemons.service.metrics import MetricsServer
from daemons.service.paths import runtime_dir
from daemons.transfer import TransferEngine, host_id
from daemons.transfer.topology import host_devices

_DRAIN_S = 25.0
_NUM_LOADERS = 2


class PrefillApp:
    """One model replica; see the module."""

    def __init__(self, config: PrefillConfig) -> None:
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
        self._loader = PrefixLoader(
            self.loop,
            BlockReader(self._transfer),
            num_workers=_NUM_LOADERS,
            timeout_s=config.transfer.timeout_s,
        )
        self._jobs = Jobs(
            self.loop,
            config.prefill,
            self._instance,
            Effects(self._compute, self._withdraw, self._report_bad),
            Ways(Publisher(self._channels), self._loader),
        )
        self._model = ModelThread(self._instance, self._make_hooks, self._on_model_end)
        self._metrics = MetricsServer(config.node.metrics, self._jobs.metrics.registry)
        self._link = MasterLink(
            self.loop, config.master.endpoint, self._describe, load=self._jobs.load_view
        )
        self.loop.every(1.0, self._jobs.refresh_metrics)

    def run(self) -> None:
        self.loop.run()

    def status(self) -> str:
        return (
            f"model={self._instance.model.name} listen={self._server.endpoint} "
            f"live={self._jobs.num_live} master={'joined' if self._link.is_joined else 'away'}"
        )

    def drain(self) -> None:
        """Take no more prompts; leave once those here were computed and pulled."""
        self._jobs.is_draining = True
        deadline_s = self.loop.clock() + _DRAIN_S

        def check() -> None:
            if not self._jobs.num_live or self.loop.clock() > deadline_s:
                self.loop.stop()
            else:
                self.loop.call_later(0.05, check)

        self._link.leave(check)

    def close(self) -> None:
        self._link.close()
        self._server.close()
        self._channels.close()
        self._model.close()
        self._loader.close()
        self._metrics.close()
        self._instance.close()
        self._transfer.close()
        self.loop.close()

    def _handle(self, call: Call) -> None:
        match call.message:
            case Prefill() as request:
                self._jobs.admit(call, request)
            case Pulled(request_id=request_id):
                self._jobs.pulled(request_id)
                call.reply(Ok())
            case Cancel(request_id=request_id):
                self._jobs.cancel(request_id)
                call.reply(Ok())
            case DataProbe() as probe:
                self._probes.answer(call, probe)
            case other:
                raise ProtocolError(f"a prefill node does not serve {type(other).__name__}")

    def _compute(self, job: Job) -> None:
        self._model.submit(job)

    def _withdraw(self, job: Job) -> bool:
        return self._model.withdraw(job)

    def _make_hooks(self, job: Job, start: int) -> JobHooks:
        post = self.loop.call_soon_threadsafe
        return JobHooks(
            job=job,
            instance=self._instance,
            start=start,
            min_group_bytes=self._config.prefill.ready_group_bytes,
            on_ready=lambda job, ready: post(self._jobs.layers_ready, job, ready),
            on_chunk=lambda job, first, end: post(self._jobs.chunk_done, job, first, end),
        )

    def _on_model_end(self, job: Job, outcome: Computed | McError) -> None:
        self.loop.call_soon_threadsafe(self._jobs.computed, job, outcome)

    def _report_bad(self, location: BlockLocation, why: str) -> None:
        if self._link.is_joined:
            self._link.channel.post(BadReplica(hash=location.hash, node=location.node, why=why))

    def _hello(self) -> HelloReply:
        return HelloReply(
            node=NodeId(self._config.node.id),
            role="prefill",
            incarnation=self._link.incarnation,
            software=software_version(),
            pid=os.getpid(),
        )

    def _describe(self) -> NodeDescription:
        return NodeDescription(
            node=NodeId(self._config.node.id),
            role="prefill",
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
