"""Schedule, RequestDone, ListRequests: matches the prefix, asks the Conductor, keeps account of what was promised."""

import logging
from collections.abc import Callable, Sequence
from typing import assert_never

from daemons.conductor.conductor import Served
from daemons.conductor.early_rejection import Overload
from daemons.conductor.membership import Member
from daemons.conductor.placement import Placement
from daemons.conductor.put_placement import PutNode, choose_put_target
from daemons.conductor.request_log import Refused
from daemons.conductor.view import Option, PlacementRequest
from daemons.core.errors import McError, Unavailable, family_of
from daemons.core.ids import BlockHash, HostId, NodeId
from daemons.mc_master.checks import MAX_TOKENS, check_schedule
from daemons.mc_master.nodes.handlers import MembershipHandlers
from daemons.mc_master.staging import ahead, slow_part, stage_ahead
from daemons.mc_master.state import MasterState
from daemons.protocol.base import Ok
from daemons.protocol.lookup import Spares
from daemons.protocol.node import ModelDescription
from daemons.protocol.packed import BlockLocations
from daemons.protocol.request import (
    Candidate,
    InstanceAddress,
    Plan,
    PutTarget,
    RequestDone,
    Schedule,
)
from daemons.protocol.request_list import ListRequests, ListRequestsReply
from daemons.rpc import Call
from daemons.store.directory.columns import Rows
from daemons.store.directory.spares import spares_of

log = logging.getLogger(__name__)

OnUsed = Callable[[Rows, HostId | None], Sequence[BlockHash]]
"""(rows of blocks that a request reads, where) -> those that become hotter with it, and get another copy"""
RequestMessage = Schedule | RequestDone | ListRequests
SETTLE_BEATS = 4
"""How long after a restart a model that nobody serves yet may still be one whose nodes are joining."""


class RequestHandlers:
    """Loop thread only."""

    def __init__(self, state: MasterState, membership: MembershipHandlers, on_used: OnUsed) -> None:
        self._state = state
        self._membership = membership
        self._on_used = on_used

    def handle(self, call: Call, message: RequestMessage) -> None:
        match message:
            case Schedule():
                self._schedule(call, message)
            case RequestDone():
                self._done(message)
                call.reply(Ok())
            case ListRequests():
                now_s = self._state.now_s()
                requests = self._state.requests.newest(message.limit, now_s=now_s)
                call.reply(ListRequestsReply(requests=requests))
            case _:
                assert_never(message)

    def tick(self) -> None:
        """Forget what never ended."""
        for work in self._state.conductor.expire(now_s=self._state.now_s()):
            self._state.requests.fail(work.request_id, "its end was never reported")

    # -- plans ---------------------------------------------------------------------------------------------------

    def _schedule(self, call: Call, message: Schedule) -> None:
        check_schedule(message)
        state = self._state
        began_s = state.now_s()
        rows = state.directory.find_prefix(message.hashes, now_s=began_s)
        request = self._request(message, rows, began_s)
        try:
            placement = state.conductor.place(request, now_s=began_s)
        except McError as error:
            self._refused(message, request, error)
            raise self._explained(error) from None
        block_tokens = self._block_tokens(placement)
        rows = rows[: placement.matched_tokens // block_tokens]
        taken = state.directory.take(
            rows,
            len(message.hashes),
            now_s=state.use_s(),
            lease_s=state.config.pool.lease_s,
            near=placement.prefill.host_id,
        )
        spares = spares_of(state.directory, taken, now_s=began_s)
        plan = self._plan(message, placement, taken.locations, spares)
        call.reply(plan)
        ahead_of_it = stage_ahead(state, taken.locations, placement.predicted_ttft_s)
        risen = self._on_used(taken.rows, placement.prefill.host_id)
        if risen:
            ahead_of_it.append(ahead("replicated", risen))
        self._account(message, placement, plan, request)
        state.requests.went_ahead(message.request_id, ahead_of_it)
        state.metrics.plan_seconds.observe(state.now_s() - began_s)

    def _refused(self, message: Schedule, request: PlacementRequest, error: McError) -> None:
        state = self._state
        state.metrics.rejections.labels(family_of(error)).inc()
        weighed = None
        if isinstance(error, Overload):
            state.metrics.overload.labels(error.limit).inc()
            weighed = error.weighed
        state.requests.reject(
            Refused(
                message,
                why=error.message,
                policy=state.conductor.tuning.policy,
                num_matched_tokens=request.matched_tokens,
                predicted_ttft_s=None if weighed is None else weighed.ttft_s,
                predicted_tbt_s=None if weighed is None else weighed.tbt_s,
                candidates=[] if weighed is None else list(map(_candidate, weighed.options)),
            ),
            now_s=state.now_s(),
        )

    def _request(self, message: Schedule, rows: Rows, now_s: float) -> PlacementRequest:
        """Hashes become tokens by the block size of the model, the same for all of its instances that can share KV."""
        state = self._state
        model = self._model(message)
        block_tokens = model.block_tokens if model is not None else 1
        context = model.max_context_tokens if model is not None else MAX_TOKENS
        local = state.directory.leading_by_host(rows, now_s=now_s)
        expected = state.conductor.expected(message.hashes, len(rows), now_s=now_s)
        slow = slow_part(state, rows, now_s)
        held = state.devices.leading(message.hashes)
        return PlacementRequest(
            request_id=message.request_id,
            model=message.model,
            num_prompt_tokens=message.num_prompt_tokens,
            max_tokens=max(1, min(message.max_tokens, context - message.num_prompt_tokens)),
            matched_tokens=len(rows) * block_tokens,
            expected_on=None if expected is None else expected[0],
            expected_tokens=0 if expected is None else expected[1] * block_tokens,
            device_tokens={node: count * block_tokens for node, count in held.items()},
            local_tokens={host: count * block_tokens for host, count in local.items()},
            exclude=frozenset(message.exclude),
            namespace=message.namespace,
            tenant=message.tenant,
            priority=message.priority,
            fast_tokens=slow.num_fast * block_tokens,
            staging_s=slow.staging_s,
        )

    def _plan(
        self,
        message: Schedule,
        placement: Placement,
        matched: BlockLocations,
        spares: Spares | None,
    ) -> Plan:
        prefills, decodes = placement.explain()
        return Plan(
            request_id=message.request_id,
            incarnation=self._state.incarnation,
            prefill=self._address(placement.prefill.node),
            decode=self._address(placement.decode.node),
            matched=matched,
            put_target=self._put_target(placement, message.exclude),
            predicted_ttft_s=placement.predicted_ttft_s,
            predicted_tbt_s=placement.predicted_tbt_s,
            candidates=[_candidate(option) for option in (*prefills, *decodes)],
            policy=placement.policy,
            spares=spares,
            is_guess=placement.prefill.cost.is_guess,
        )

    def _put_target(self, placement: Placement, exclude: list[NodeId]) -> PutTarget | None:
        """One with room on the prefill's own host comes first: only where there is none, all others are weighed."""
        membership, near = self._state.membership, placement.prefill.host_id
        for members in (membership.on_host(near), membership):
            nodes = [
                PutNode(
                    node=member.node.node,
                    host_id=member.node.host_id,
                    state=member.state,
                    used_bytes=member.used_bytes,
                    capacity_bytes=member.capacity_bytes,
                    last_chosen=member.last_chosen,
                )
                for member in members
                if member.node.segments
                and not member.is_draining
                and member.node.node not in exclude
            ]
            full = self._state.config.pool.high_watermark
            if members is membership or any(node.is_open(full) for node in nodes):
                chosen = choose_put_target(nodes, near=near, full=full)
                break
        if chosen is None:
            return None
        return PutTarget(node=chosen, control=self._member(chosen).node.control)

    def _account(
        self, message: Schedule, placement: Placement, plan: Plan, request: PlacementRequest
    ) -> None:
        state = self._state
        now_s = state.now_s()
        serial = state.conductor.account(placement, request, now_s=now_s)
        if plan.put_target is not None:
            state.conductor.expect(placement, message.hashes, len(plan.matched), now_s=now_s)
        if plan.put_target is not None:
            self._member(plan.put_target.node).last_chosen = serial
        held_tokens = min(
            request.device_tokens.get(placement.prefill.node, 0), placement.matched_tokens
        )
        matched_tokens = max(len(plan.matched) * self._block_tokens(placement), held_tokens)
        state.requests.add(message, plan, num_matched_tokens=matched_tokens, now_s=now_s)
        state.metrics.plans.labels(placement.policy).inc()

    def _done(self, message: RequestDone) -> None:
        state = self._state
        tbt_s = _time_between_tokens(message)
        state.conductor.finish(
            message.request_id,
            now_s=state.now_s(),
            tbt_s=tbt_s,
            served=_served(message),
            has_tokens=message.num_generated_tokens > 0,
        )
        request = state.requests.finish(message, tbt_s=tbt_s or None)
        if request is not None:
            state.metrics.predicted(request)

    # -- small things --------------------------------------------------------------------------------------------

    def _explained(self, error: McError) -> McError:
        """After a restart, nobody who serves a model yet may mean that its nodes have not joined again yet."""
        state = self._state
        settle_s = SETTLE_BEATS * state.config.membership.beat_interval_s
        age_s = state.now_s() - state.started_s
        if family_of(error) == "not_found" and age_s < settle_s:
            return Unavailable(
                f"{error.message}; this master is {age_s:.1f} s old, nodes are still joining",
                retry_after_ms=500,
            )
        return error

    def _member(self, node: NodeId) -> Member:
        member = self._state.membership.get(node)
        assert member is not None, "a plan names members"
        return member

    def _address(self, node: NodeId) -> InstanceAddress:
        description = self._member(node).node
        return InstanceAddress(node=node, control=description.control, host_id=description.host_id)

    def _model(self, message: Schedule) -> ModelDescription | None:
        for member in self._state.membership:
            model = member.node.model
            if model is None or model.name != message.model:
                continue
            if message.namespace in (b"", model.namespace):
                return model
        return None

    def _block_tokens(self, placement: Placement) -> int:
        model = self._member(placement.prefill.node).node.model
        assert model is not None, "an instance has a model"
        return model.block_tokens


def _served(message: RequestDone) -> Served | None:
    """None where it does not say. Loads that compute waited for are no matter of the compute's prediction."""
    timing = message.timing
    if timing is None or not message.ok:
        return None
    prefill_s = timing.first_token_s - timing.prefill_queue_s - timing.load_wait_s
    return Served(message.num_reused_tokens, prefill_s) if prefill_s > 0 else None


def _time_between_tokens(message: RequestDone) -> float:
    """Mean over the answer; 0 where it has too few tokens to tell."""
    if message.timing is None or not message.ok or message.num_generated_tokens < 2:
        return 0.0
    return message.timing.decode_s / (message.num_generated_tokens - 1)


def _candidate(option: Option) -> Candidate:
    return Candidate(
        node=option.node,
        queue_s=option.queue_s,
        load_s=option.load_s,
        prefill_s=option.prefill_s,
        total_s=option.total_s,
        matched_tokens=option.matched_tokens,
        delay_s=option.delay_s,
        device_tokens=option.device_tokens,
    )
