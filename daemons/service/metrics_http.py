"""The HTTP server of /metrics. Whoever connects to it takes one of few threads, and that for a short time only."""

import logging
import socket
import sys
import threading
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

log = logging.getLogger(__name__)

MAX_SCRAPES: Final = 16
"""At one time; further connections are closed."""
SILENCE_S: Final = 5.0
"""A peer that says or takes nothing for so long has gone."""


class _Scrape(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)


class MetricsHttp(ThreadingMixIn, WSGIServer):
    """Binds when made, raises OSError; `serve_forever` in a thread of the caller."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._free = threading.BoundedSemaphore(MAX_SCRAPES)
        super().__init__((host, port), _Scrape)
        self.set_app(make_wsgi_app(registry))

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that resets its connection, or is silent, is no event."""
        log.debug("scrape failed peer=%s why=%r", client_address, sys.exc_info()[1])
