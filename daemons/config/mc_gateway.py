"""/etc/mooncake/mc-gateway.toml"""

from typing import Annotated

import msgspec

from daemons.config.base import Section
from daemons.config.common import (
    Count,
    Host,
    LogSection,
    MasterLinkSection,
    Name,
    Port,
    Seconds,
    SecuritySection,
    Size,
)


class NodeSection(Section, frozen=True, kw_only=True):
    """Who this gateway is; it joins the master like every node, but offers nothing."""

    id: Name = "gateway"


class HttpSection(Section, frozen=True, kw_only=True):
    """The OpenAI-compatible API; /metrics, /health and /status are on the same port."""

    host: Host = "127.0.0.1"
    port: Port = 8000
    max_body: Size = "8MiB"
    max_requests: Count = 256
    """Requests in flight, those that wait included; beyond it 429 with Retry-After. While they are still being sent,
    those of one tenant take half of it at most."""
    head_timeout_s: Seconds = 30.0
    """A connection that has not sent the head of a request so long after it was opened, or began one, is closed."""
    max_connections_per_address: Count = 1024
    """Of one IP address, or one /64 of IPv6, at most half of what the limit of open files leaves; one more is closed at
    once. A proxy in front is one address: at least as many as it opens."""
    drain_s: Seconds = 30.0
    """Answers that still run so long after SIGTERM are cut; the unit's TimeoutStopSec must be longer."""
    status_page: bool = True
    """Serve a page about the cluster at /status, for people; with tenants to whom /metrics is shown."""


class RequestSection(Section, frozen=True, kw_only=True):
    """How a request is carried out."""

    default_max_tokens: Count = 512
    schedule_timeout_s: Seconds = 5.0
    """A master that takes longer for a plan counts as away: 503. The wait behind others is not in it."""
    timeout_s: Seconds = 600.0
    """Longest time from a request to the last token of its answer, with all attempts."""
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=100)] = 2


class TenantsSection(Section, frozen=True, kw_only=True):
    """Who may use the API. See mcctl tenant in mcctl(1)."""

    file: str = ""
    """What mcctl tenant writes: tenants, their limits, hashes of their keys, prices. Read again when it changes; the
    same on all gateways. Empty: everybody may, which is refused where other hosts reach http.host, unless --insecure.
    """
    usage_dir: str = ""
    """Directory of usage-DAY.jsonl, a line for each answer; of this gateway alone. Empty for $STATE_DIRECTORY, else
    the directory of the file."""
    open_metrics: bool = False
    """Show /metrics, which names tenants, to other hosts too. Without tenants it is shown to all. A proxy on this host
    that does not say for whom it asks, by Forwarded or X-Forwarded-For, must keep /metrics and /status to itself."""


class AccessLogSection(Section, frozen=True, kw_only=True):
    """What was asked, for mcctl simulate: no text."""

    directory: str = ""
    """Directory of requests-DAY.jsonl: a line for each answer in the format of Mooncake's traces, with the time, both
    lengths and a number for each 512 tokens of the prompt. mcctl simulate plan FILE reads it. Empty: none."""
    max_size: Size = "1GiB"
    """Of the file of one day; what comes then is counted in mc_gateway_access_lost, and not written."""


class GatewayConfig(Section, frozen=True, kw_only=True):
    """mc-gateway.toml"""

    models: dict[str, str] = msgspec.field(default_factory=dict)
    """Name -> directory with tokenizer.json and the chat template."""
    node: NodeSection = msgspec.field(default_factory=NodeSection)
    http: HttpSection = msgspec.field(default_factory=HttpSection)
    request: RequestSection = msgspec.field(default_factory=RequestSection)
    master: MasterLinkSection = msgspec.field(default_factory=MasterLinkSection)
    tenants: TenantsSection = msgspec.field(default_factory=TenantsSection)
    access_log: AccessLogSection = msgspec.field(default_factory=AccessLogSection)
    security: SecuritySection = msgspec.field(default_factory=SecuritySection)
    log: LogSection = msgspec.field(default_factory=LogSection)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models:
            raise ValueError(
                '`models` is empty; add NAME = "DIRECTORY" with the tokenizer.json of each model to serve'
            )
