"""/metrics of a daemon: a Prometheus registry of its own, served by a small thread."""

import threading
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.registry import Collector

from daemons.config.forms import is_host_port
from daemons.core.errors import ConfigError
from daemons.rpc import Server
from daemons.service.metrics_http import MetricsHttp


class _Shown(Collector):
    """Whatever registry there is by now."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.registry = registry

    def collect(self) -> Iterable[Metric]:
        return () if self.registry is None else self.registry.collect()


class MetricsServer:
    """Binds at once. `listen` is host:port, port 0 for a free one; empty serves nothing.

    Without a registry yet nothing is shown until `show` brings one: an address is taken before what takes long.
    """

    def __init__(self, listen: str, registry: CollectorRegistry | None = None) -> None:
        self.address = ""
        self._shown = _Shown(registry)
        served = CollectorRegistry()
        served.register(self._shown)
        self._server: MetricsHttp | None = None
        if not listen:
            return
        if not is_host_port(listen):
            raise ConfigError(f"`node.metrics`: {listen!r} is not host:port; empty turns it off")
        host, _, port = listen.rpartition(":")
        try:
            self._server = MetricsHttp(host.strip("[]"), int(port), served)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics on {listen}: {error.strerror}; choose another `node.metrics`"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="mc-metrics", daemon=True
        )
        self._thread.start()
        self.address = f"{host}:{self._server.server_port}"

    def show(self, registry: CollectorRegistry) -> None:
        self._shown.registry = registry

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=2)
            self._server = None


def count_refusals(registry: CollectorRegistry, prefix: str, server: Server) -> None:
    """Shows what the server refused for its peers' keys."""
    refused = Gauge(
        f"{prefix}_refused", "Connections and messages refused for their keys", registry=registry
    )
    refused.set_function(lambda: server.num_refused)
