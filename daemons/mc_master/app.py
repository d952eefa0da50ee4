"""The master's process: sockets, timers, metrics and the tables, put together."""

import logging
import os
import socket
from collections.abc import Collection
from pathlib import Path

from daemons.conductor.conductor import Conductor
from daemons.conductor.membership import Member, Membership
from daemons.conductor.request_log import RequestLog
from daemons.config.costs import read_costs
from daemons.config.mc_master import MasterConfig
from daemons.config.secret import mark_of
from daemons.core.errors import ConfigError
from daemons.core.ids import NodeId, new_epoch
from daemons.mc_master.event_log import EventLog
from daemons.mc_master.grants import ReplyGrants
from daemons.mc_master.handlers import Handlers
from daemons.mc_master.metrics import MasterMetrics
from daemons.mc_master.nodes.data_keys import DataKeys
from daemons.mc_master.nodes.drain_list import DrainList
from daemons.mc_master.nodes.incarnation import next_incarnation, store_incarnation
from daemons.mc_master.nodes.key_watch import KeyWatch
from daemons.mc_master.replicas.adopting import ADOPT_INTERVAL_S
from daemons.mc_master.state import MasterState, Outlets, tuning_of
from daemons.mc_master.tenants.quota_file import QuotaFile
from daemons.protocol.base import Message
from daemons.protocol.lookup import Match
from daemons.protocol.node import HelloReply, NodeDescription
from daemons.rpc import AllowedList, Background, Call, Loop, Publisher, Server
from daemons.service.daemon import software_version
from daemons.service.identity import data_secret, open_identity
from daemons.service.metrics import MetricsServer, count_refusals
from daemons.service.paths import state_directory
from daemons.store.directory.directory import Directory
from daemons.store.eviction.policies import POLICIES
from daemons.transfer import host_id

log = logging.getLogger(__name__)

HEAT_INTERVAL_S = 0.25
EXIT_STEPPED_DOWN = 7
"""A master of a higher incarnation lived; systemd starts this one again, above it."""


class MasterApp:
    """Listens when built. `run` raises SystemExit when this master had to step down."""

    def __init__(self, config: MasterConfig) -> None:
        node = NodeId(config.node.id)
        identity = open_identity(config.security.key_file, node=node, role="master")
        self.loop = Loop(identity=identity)
        self._stepped_down = False
        self._state_dir = state_directory(config.node.state_dir, config.node.id)
        self._server = Server(self.loop, config.node.listen, self._hello, self._handle)
        self._publisher = Publisher(self.loop, config.node.events)
        secret = data_secret(identity, config.access.secret_file, "access.secret_file")
        self._data_keys = DataKeys(identity.pair.secret) if identity is not None else None
        if identity is not None:
            self._watch_keys(config, identity.allowed)
        metrics = MasterMetrics()
        count_refusals(metrics.registry, "mc_master", self._server)
        self._metrics_server = MetricsServer(config.node.metrics, metrics.registry)
        drains, quotas = DrainList(self._state_dir), QuotaFile(self._state_dir)
        # Taken last: a start that fails because the address is in use is not a life.
        incarnation = next_incarnation(self._state_dir)
        metrics.incarnation.set(incarnation)
        events = EventLog(self._publisher.publish, self.loop.clock, limit=config.node.event_history)
        self.state = MasterState(
            config=config,
            incarnation=incarnation,
            description=self._describe(config, mark_of(secret)),
            loop=self.loop,
            out=Outlets(events.publish, self._notify, self._step_down, self._greet),
            events=events,
            metrics=metrics,
            membership=Membership(config.membership.suspect_beats, config.membership.dead_beats),
            directory=Directory(POLICIES[config.pool.eviction]),
            conductor=Conductor(tuning_of(config)),
            requests=RequestLog(config.conductor.request_log),
            started_s=self.loop.clock(),
            directory_path=self._state_dir,
            costs=read_costs(config.conductor.costs_file),
            grants=self._open_grants(secret),
        )
        self.state.directory.choice.default_wanted = config.pool.replicas
        self._handlers = Handlers(self.state, drains, quotas)
        if identity is not None:
            identity.allowed.on_revoked.append(self._put_out_revoked)
        self._server.on_drained = self._handlers.blocks.lookups.settle
        self._reported_lookups = (0, 0, 0)
        self.loop.on_stall = self._handlers.on_stall
        self.loop.every(config.membership.beat_interval_s, self._tick)
        sweeping = Background(self.loop, self._handlers.blocks.sweep)
        self._handlers.membership.on_gone.append(lambda _: sweeping.wake())
        self.loop.every(ADOPT_INTERVAL_S, self._handlers.adopting.run_once)
        replicating = self._handlers.replicating
        replicating.on_work = Background(self.loop, replicating.run_once).wake
        self.loop.every(HEAT_INTERVAL_S, self._handlers.heat.run_once)

    @property
    def endpoint(self) -> str:
        """Where it listens, with the real port."""
        return self._server.endpoint

    def run(self) -> None:
        self.loop.run()
        if self._stepped_down:
            raise SystemExit(EXIT_STEPPED_DOWN)

    def drain(self) -> None:
        """Nothing of others depends on this process going on: answer what waits, and stop."""
        self._handlers.blocks.close()
        self.loop.stop()

    def status(self) -> str:
        state = self.state
        num_alive = sum(member.state == "alive" for member in state.membership)
        return (
            f"incarnation={state.incarnation} nodes={num_alive}/{len(state.membership)} "
            f"blocks={len(state.directory.blocks)} at={self.endpoint}"
        )

    def reload(self, fresh: MasterConfig) -> None:
        """Takes over [conductor] and [pool] but for pool.eviction; everything else needs a restart."""
        state = self.state
        try:
            state.costs = read_costs(fresh.conductor.costs_file)
        except ConfigError as error:
            log.error("costs are as they were why=%s", error.message)  # noqa: TRY400 - an operator's slip
        state.config = fresh
        state.conductor.tuning = tuning_of(fresh)
        state.requests.limit = fresh.conductor.request_log
        state.directory.choice.default_wanted = fresh.pool.replicas
        self._handlers.reload()

    def close(self) -> None:
        self._handlers.blocks.close()
        self._metrics_server.close()
        self._server.close()
        self._publisher.close()
        self.loop.close()

    def _handle(self, call: Call) -> None:
        if not isinstance(call.message, Match):
            self._handlers.blocks.lookups.settle()
        self._handlers.handle(call)

    def _hello(self) -> HelloReply:
        return HelloReply(
            node=self.state.description.node,
            role="master",
            incarnation=self.state.incarnation,
            software=software_version(),
            pid=os.getpid(),
        )

    def _notify(self, member: Member, message: Message) -> bool:
        return self._server.notify(member.peer, message)

    def _watch_keys(self, config: MasterConfig, allowed: AllowedList) -> None:
        KeyWatch(self.loop, Path(config.security.authorized_file), allowed, self._tell_all)

    def _open_grants(self, secret: bytes | None) -> ReplyGrants:
        """By keys where there are some, else by the secret."""
        if self._data_keys is not None:
            return ReplyGrants(self._data_keys.grant_key)
        return ReplyGrants(None if secret is None else lambda _: secret)

    def _greet(self, member: Member) -> None:
        """A node lets others in by this list, so it comes before anybody is sent to the node."""
        self._tell_keys(member)

    def _tell_all(self, fresh: Collection[str]) -> None:
        for member in self.state.membership:
            if member.state != "dead":
                self._tell_keys(member, fresh)

    def _tell_keys(self, member: Member, fresh: Collection[str] | None = None) -> None:
        identity, owner = self.loop.identity, self._server.owner(member.peer)
        if self._data_keys is not None and identity is not None and owner is not None:
            self._notify(member, self._data_keys.message(identity.allowed, owner, fresh))

    def _put_out_revoked(self) -> None:
        if self._data_keys is not None:
            self._data_keys.renew_grants()
        for member in list(self.state.membership):
            if member.state != "dead" and not self._server.knows(member.peer):
                self._handlers.membership.put_out(member, "its key was revoked")

    def _step_down(self, seen: int) -> None:
        log.error(
            "a master of incarnation %d lived, this one is %d: ending; the next start is above it, "
            "if %s (node.state_dir) is still there",
            seen,
            self.state.incarnation,
            self._state_dir,
        )
        self._stepped_down = True
        self.loop.stop()
        store_incarnation(self._state_dir, seen)

    def _tick(self) -> None:
        self._handlers.tick()
        self._update_gauges()

    def _update_gauges(self) -> None:
        state, metrics = self.state, self.state.metrics
        metrics.blocks.set(len(state.directory.blocks))
        metrics.replicas.set(state.directory.replicas.num_rows)
        metrics.used_bytes.set(sum(member.used_bytes for member in state.membership))
        metrics.capacity_bytes.set(sum(member.capacity_bytes for member in state.membership))
        metrics.running_requests.set(state.conductor.num_running)
        metrics.malformed.set(self._server.num_malformed)
        metrics.stale.set(self._server.num_stale)
        metrics.handler_errors.set(self.loop.num_errors)
        counts: dict[tuple[str, str], int] = {}
        for member in state.membership:
            key = (member.node.role, member.state)
            counts[key] = counts.get(key, 0) + 1
        metrics.nodes.clear()
        for (role, node_state), count in counts.items():
            metrics.nodes.labels(role, node_state).set(count)
        lookups = state.directory.lookups
        now = (lookups.num_lookups, lookups.num_lookup_blocks, lookups.num_hit_blocks)
        counters = (metrics.lookups, metrics.lookup_blocks, metrics.hit_blocks)
        for counter, value, before in zip(counters, now, self._reported_lookups, strict=True):
            counter.inc(value - before)
        self._reported_lookups = now

    def _describe(self, config: MasterConfig, secret_mark: str) -> NodeDescription:
        return NodeDescription(
            node=NodeId(config.node.id),
            role="master",
            host=socket.gethostname(),
            host_id=host_id(),
            epoch=new_epoch(),
            control=self.endpoint,
            pid=os.getpid(),
            software=software_version(),
            metrics=self._metrics_server.address,
            secret_mark=secret_mark,
        )
