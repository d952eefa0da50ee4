"""Wiring of mc-prefill: the control server, the model thread, and the loads and puts around it.

Prefill -> slot -> PrefillStarted -> load || compute -> LayersReady... -> PrefillReply -> Pulled -> release
"""

from collections.abc import Callable
from typing import Final

from daemons.client.channel_pool import ChannelPool
from daemons.client.node_health import NodeHealth, suspicion
from daemons.client.prefix_load import PrefixLoader
from daemons.client.publisher import Publisher
from daemons.client.staging import Stager
from daemons.client.store import BlockReader
from daemons.config.mc_prefill import PrefillConfig
from daemons.core.errors import McError, ProtocolError
from daemons.core.ids import BlockHash
from daemons.engine.arena.slot_copy import SlotCopier
from daemons.engine.instance import OpenInstance
from daemons.mc_prefill.device_tier import DeviceTier
from daemons.mc_prefill.job import Computed, Job, JobHooks
from daemons.mc_prefill.jobs import Effects, Jobs, Ways
from daemons.mc_prefill.model_thread import ModelThread
from daemons.protocol.base import Ok
from daemons.protocol.block import BadReplica, BlockLocation
from daemons.protocol.lookup import Match, MatchReply
from daemons.protocol.messages import Reply
from daemons.protocol.probe import DataProbe
from daemons.protocol.request import Cancel, Prefill, Pulled
from daemons.rpc import Call
from daemons.service.instance_node import InstanceNode
from daemons.transfer import host_id

_NUM_LOADERS = 2
_MATCH_S: Final = 0.25
"""How long a prompt waits to hear what others made of its prefix meanwhile."""


class PrefillApp:
    """One model replica; see the module."""

    def __init__(self, config: PrefillConfig, open_instance: OpenInstance) -> None:
        self._config = config
        self._node = InstanceNode("prefill", config, self._handle, open_instance)
        self.loop = self._node.loop
        self._channels = ChannelPool(self.loop)
        self._loader = PrefixLoader(
            self.loop,
            BlockReader(self._node.transfer, NodeHealth(on_suspect=self._report_suspect)),
            Stager(self._channels),
            num_workers=_NUM_LOADERS,
            timeout_s=config.transfer.timeout_s,
        )
        self._tier = DeviceTier(
            self._node.instance,
            config.prefill.retain_fraction,
            SlotCopier(self.loop.call_soon_threadsafe),
            self._node.reports,
            self.loop.clock,
        )
        self._jobs = Jobs(
            self.loop,
            config.prefill,
            self._node.instance,
            Effects(self._compute, self._withdraw, self._report_bad, self._match),
            Ways(Publisher(self._channels), self._loader, self._tier),
        )
        self._model = ModelThread(self._node.instance, self._make_hooks, self._on_model_end)
        held = self._tier if self._tier.slots.limit_tokens else None
        self._node.join(self._jobs.load_view, self._jobs.metrics.registry, held)
        self.loop.every(1.0, self._jobs.refresh_metrics)

    def run(self) -> None:
        self.loop.run()

    def status(self) -> str:
        return self._node.status(self._jobs.num_live)

    def drain(self) -> None:
        """Take no more prompts; leave once those here were computed and pulled."""
        self._jobs.is_draining = True
        self._node.drain(lambda: self._jobs.num_live, self._config.prefill.drain_s)

    def close(self) -> None:
        self._node.stop_serving()
        self._channels.close()
        self._model.close()
        self._tier.close()
        self._loader.close()
        self._node.close()

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
                self._node.answer_probe(call, probe)
            case other:
                raise ProtocolError(f"a prefill node does not serve {type(other).__name__}")

    def _compute(self, job: Job) -> None:
        self._model.submit(job)

    def _match(
        self, hashes: list[BlockHash], on_found: Callable[[list[BlockLocation] | None], object]
    ) -> None:
        """Where the blocks are by now; None where the master does not say in time."""

        def on_reply(reply: Reply | McError) -> None:
            on_found(reply.locations.unpack() if isinstance(reply, MatchReply) else None)

        asked = Match(hashes=hashes, near=host_id())
        self._node.ask_master(asked, timeout_s=_MATCH_S, on_reply=on_reply)

    def _withdraw(self, job: Job) -> bool:
        return self._model.withdraw(job)

    def _make_hooks(self, job: Job, start: int) -> JobHooks:
        post = self.loop.call_soon_threadsafe
        return JobHooks(
            job=job,
            instance=self._node.instance,
            start=start,
            min_group_bytes=self._config.prefill.ready_group_bytes,
            on_ready=lambda job, ready: post(self._jobs.layers_ready, job, ready),
            on_chunk=lambda job, first, end: post(self._jobs.chunk_done, job, first, end),
        )

    def _on_model_end(self, job: Job, outcome: Computed | McError) -> None:
        self.loop.call_soon_threadsafe(self._jobs.computed, job, outcome)

    def _report_suspect(self, location: BlockLocation, why: str) -> None:
        """On a loader's thread."""
        self.loop.call_soon_threadsafe(self._node.tell_master, suspicion(location, why))

    def _report_bad(self, location: BlockLocation, why: str) -> None:
        self._node.tell_master(BadReplica(hash=location.hash, node=location.node, why=why))
