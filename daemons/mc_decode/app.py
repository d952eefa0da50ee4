"""Wiring of mc-decode: the control server, the engine thread, and the loads, pulls and puts around it.

Generate -> slot -> Prefill || load from the pool -> LayersReady: pull -> first token -> Pulled -> batch -> reply
"""

from daemons.client.channel_pool import ChannelPool
from daemons.config.mc_decode import DecodeConfig
from daemons.core.errors import ProtocolError
from daemons.engine.instance import OpenInstance
from daemons.mc_decode.engine_thread import Callbacks, EngineThread
from daemons.mc_decode.request import Request
from daemons.mc_decode.requests import Effects, Requests
from daemons.protocol.base import Ok
from daemons.protocol.probe import DataProbe
from daemons.protocol.request import Cancel, Generate
from daemons.rpc import Call
from daemons.service.instance_node import InstanceNode


class DecodeApp:
    """One model replica; see the module."""

    def __init__(self, config: DecodeConfig, open_instance: OpenInstance) -> None:
        self._config = config
        self._node = InstanceNode("decode", config, self._handle, open_instance)
        self.loop = self._node.loop
        self._channels = ChannelPool(self.loop)
        post = self.loop.call_soon_threadsafe
        self._engine = EngineThread(
            self._node.instance,
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
            self._node.instance,
            Effects(self._join, self._leave, self._node.tell_master),
            self._channels,
        )
        self._node.join(self._requests.load_view, self._requests.metrics.registry)
        self.loop.every(1.0, self._requests.refresh_metrics)

    def run(self) -> None:
        self.loop.run()

    def status(self) -> str:
        return self._node.status(self._requests.num_live)

    def drain(self) -> None:
        """Take no more requests; leave once those here have their last token."""
        self._requests.is_draining = True
        self._node.drain(lambda: self._requests.num_live, self._config.decode.drain_s)

    def close(self) -> None:
        self._node.stop_serving()
        self._channels.close()
        self._engine.close()
        self._requests.close()
        self._node.close()

    def _handle(self, call: Call) -> None:
        match call.message:
            case Generate() as message:
                self._requests.admit(call, message)
            case Cancel() as message:
                self._requests.cancel(message)
                call.reply(Ok())
            case DataProbe() as probe:
                self._node.answer_probe(call, probe)
            case other:
                raise ProtocolError(f"a decode node does not serve {type(other).__name__}")

    def _join(self, request: Request) -> None:
        self._engine.join(request)

    def _leave(self, request: Request) -> None:
        self._engine.leave(request)
