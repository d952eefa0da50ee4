"""Wiring of mc-gateway: the rpc loop in a thread of its own, HTTP and coroutines in the main one."""

import asyncio
import contextlib
import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import uvicorn
from starlette.routing import Route

from daemons.client.channel_pool import ChannelPool
from daemons.client.generate import Cluster
from daemons.client.planning import Planner
from daemons.config.common import size_bytes
from daemons.config.mc_gateway import GatewayConfig
from daemons.core.errors import ConfigError
from daemons.core.ids import NodeId, new_epoch
from daemons.mc_gateway.access_log import open_access_log
from daemons.mc_gateway.board import Board
from daemons.mc_gateway.bridge import Bridge
from daemons.mc_gateway.catalog import REFRESH_S, Catalog
from daemons.mc_gateway.connection import HttpConnection, Room, on_loop_error
from daemons.mc_gateway.generation import Gateway, Slots
from daemons.mc_gateway.handlers import build_asgi
from daemons.mc_gateway.metrics import GatewayMetrics
from daemons.mc_gateway.page import StatusPage
from daemons.mc_gateway.prompt import Preparer
from daemons.mc_gateway.visit import open_front
from daemons.protocol.node import NodeDescription
from daemons.rpc import Loop
from daemons.service.daemon import software_version
from daemons.service.identity import master_endpoint, open_identity
from daemons.service.limits import room_for_connections
from daemons.service.master_link import MasterLink
from daemons.text.tokenizer import Tokenizer, load_tokenizer
from daemons.transfer import host_id

logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

LEAVE_S: Final = 2.0
BACKLOG: Final = 1024


class GatewayApp:
    """Listens when built; `run` serves until drained or its loop is stopped."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._tokenizers = _load_tokenizers(config.models)
        self._max_body_bytes = size_bytes(config.http.max_body, "http.max_body")
        self._metrics = GatewayMetrics()
        self._front = open_front(config, self._metrics)
        self._access = open_access_log(config.access_log, self._metrics)
        self._listener = _listen(config.http.host, config.http.port)
        self.address = "{}:{}".format(*self._listener.getsockname()[:2])
        node = NodeId(config.node.id)
        identity = open_identity(config.security.key_file, node=node, role="gateway")
        self.loop = Loop(identity=identity)
        self._epoch = new_epoch()
        endpoint = master_endpoint(config.master.endpoint, config.security)
        self._link = MasterLink(self.loop, endpoint, self._describe)
        self._decodes = ChannelPool(self.loop)
        self._slots = Slots(config.http.max_requests)
        self._server: _Server | None = None
        self._http_loop: asyncio.AbstractEventLoop | None = None
        self._is_draining = False

    def run(self) -> None:
        thread = threading.Thread(target=self._run_rpc, name="rpc")
        thread.start()
        try:
            asyncio.run(self._serve())
        finally:
            self.loop.call_soon_threadsafe(self._leave)
            thread.join()

    def drain(self) -> None:
        """Stop accepting, let what runs finish; the HTTP server does both once told to exit."""
        self._is_draining = True
        if self._server is not None:
            self._server.should_exit = True

    def in_other_loop(self, action: Callable[[], object]) -> None:
        """Where HTTP is served; at once before that has begun and after it has ended."""
        http_loop = self._http_loop
        if http_loop is None:
            action()
            return
        with contextlib.suppress(RuntimeError):  # it ended meanwhile
            http_loop.call_soon_threadsafe(action)

    def status(self) -> str:
        state = "draining" if self._is_draining else "serving"
        models = ",".join(self._tokenizers)
        return f"{state} http={self.address} models={models} in_flight={self._slots.num_used}"

    def close(self) -> None:
        self._link.close()
        self._decodes.close()
        self._front.close()
        if self._access is not None:
            self._access.close()
        self._listener.close()
        self.loop.close()

    def _run_rpc(self) -> None:
        try:
            self.loop.run()
        finally:
            # Stopped before HTTP has ended: a second signal, so nothing is waited for.
            if self._server is not None:
                self._server.should_exit = self._server.force_exit = True

    async def _serve(self) -> None:
        settings = self._config.request
        self._http_loop = asyncio.get_running_loop()
        self._http_loop.set_exception_handler(on_loop_error)
        cluster = Cluster(
            loop=self.loop,
            master=self._link.channel,
            decodes=self._decodes,
            planner=Planner(self._link.channel, settings.schedule_timeout_s),
            max_retries=settings.max_retries,
        )
        bridge = Bridge(cluster)
        catalog = Catalog(self._tokenizers, bridge)
        preparer = Preparer()
        gateway = Gateway(
            bridge=bridge,
            catalog=catalog,
            preparer=preparer,
            metrics=self._metrics,
            front=self._front,
            access=self._access,
            settings=settings,
            max_body_bytes=self._max_body_bytes,
            slots=self._slots,
        )
        routes, sampling = self._status_page(bridge, catalog)
        jobs = [*sampling, *map(asyncio.ensure_future, self._front.jobs())]
        self.loop.call_soon_threadsafe(self._start_polling, catalog)
        self._server = _Server(
            uvicorn.Config(
                build_asgi(gateway, routes),
                access_log=False,
                backlog=BACKLOG,
                h11_max_incomplete_event_size=65_536,
                http=self._connection_type(),  # type: ignore[arg-type]
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(self._config.http.drain_s),
                timeout_keep_alive=60,
                ws="none",
            )
        )
        self._server.should_exit = self._is_draining
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            self._http_loop = None
            for task in jobs:
                task.cancel()
            preparer.close()

    def _connection_type(self) -> Callable[..., HttpConnection]:
        http = self._config.http
        return partial(
            HttpConnection,
            head_timeout_s=http.head_timeout_s,
            room=Room(room_for_connections(), http.max_connections_per_address),
        )

    def _status_page(
        self, bridge: Bridge, catalog: Catalog
    ) -> tuple[list[Route], list[asyncio.Task[None]]]:
        """Its paths, and what works for it; nothing where it is off."""
        if not self._config.http.status_page:
            return [], []
        board = Board(bridge)
        page = StatusPage(board, catalog, self._front)
        return page.routes(), [asyncio.ensure_future(board.run_forever())]

    def _start_polling(self, catalog: Catalog) -> None:
        catalog.poll()
        self.loop.every(REFRESH_S, catalog.poll)

    def _leave(self) -> None:
        self._link.leave(self.loop.stop, LEAVE_S)

    def _describe(self) -> NodeDescription:
        return NodeDescription(
            node=NodeId(self._config.node.id),
            role="gateway",
            host=socket.gethostname(),
            host_id=host_id(),
            epoch=self._epoch,
            control=f"http://{self.address}",
            pid=os.getpid(),
            software=software_version(),
            metrics=self.address,
        )


class _Server(uvicorn.Server):
    """Signals are the daemon's, not the HTTP server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _load_tokenizers(models: dict[str, str]) -> dict[str, Tokenizer]:
    return {name: load_tokenizer(Path(path).expanduser()) for name, path in models.items()}


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = said.partition(" (")[0]
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}; choose another `http.port`, or stop what uses it"
        ) from None
    # Inherited by accepted sockets. asyncio sets it only on sockets made with an explicit protocol number, which
    # these are not; without it each event waits for the client's delayed acknowledgement, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
