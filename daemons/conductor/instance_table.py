"""All instances as numpy columns, a row each, kept up to date as they join, report and get work.

So a decision over a thousand instances is some array operations, not a thousand objects. Rows are reused; lists of
rows come in the order of the nodes' names, so that the first of equals is the same whatever came before.
"""

from dataclasses import dataclass

import numpy as np

from daemons.conductor.columns import Ints, Rows
from daemons.conductor.decode_slots import DecodeSlots
from daemons.conductor.latency import CostColumns, CostModel
from daemons.conductor.view import InstanceRole, InstanceView
from daemons.core.ids import HostId, NodeId
from daemons.protocol.node import NodeState

_FIRST_ROWS = 16
_NO_ROWS: Rows = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class InstanceDescription:
    """What does not change while an instance lives. `capacity_tokens` 0: unknown, nothing is refused for it."""

    node: NodeId
    role: InstanceRole
    host_id: HostId
    model: str
    namespace: bytes
    capacity_tokens: int = 0
    is_reuse_safe: bool = True
    pipeline: str = ""
    """Prefill instances of one name can share a prompt layer by layer; empty: alone only."""


class InstanceTable:
    """At most as many rows as instances were ever there at once. Columns are public: Workload writes what it
    promised.
    """

    def __init__(self) -> None:
        self.row_by_node: dict[NodeId, int] = {}
        self.terms = np.zeros((8, _FIRST_ROWS))
        self.busy_until_s = np.zeros(_FIRST_ROWS)
        self.reported_queue_s = np.zeros(_FIRST_ROWS)
        self.num_promised = np.zeros(_FIRST_ROWS, np.int64)
        self.num_reported = np.zeros(_FIRST_ROWS, np.int64)
        self.capacity_tokens = np.zeros(_FIRST_ROWS, np.int64)
        self.reserved_tokens = np.zeros(_FIRST_ROWS, np.int64)
        self.last_chosen = np.zeros(_FIRST_ROWS, np.int64)
        self.is_reuse_safe = np.zeros(_FIRST_ROWS, np.bool_)
        self.decode_slots = DecodeSlots(_FIRST_ROWS)
        self._described: list[InstanceDescription | None] = [None] * _FIRST_ROWS
        self._states: list[NodeState] = ["alive"] * _FIRST_ROWS
        self._draining: set[int] = set()
        self._costs = [CostModel()] * _FIRST_ROWS
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))
        self._rows_by_host: dict[HostId, set[int]] = {}
        self._groups: dict[tuple[str, bytes, InstanceRole, NodeState], Rows] | None = None
        self._namespaces: dict[str, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self.row_by_node)

    # -- who is there --------------------------------------------------------------------------------------------

    def put(self, described: InstanceDescription, state: NodeState = "alive") -> None:
        """Add it, or say anew what it is; an instance that was there keeps its costs and promises."""
        row = self.row_by_node.get(described.node)
        if row is None:
            row = self._new_row()
            self.row_by_node[described.node] = row
            self._write_cost(row, CostModel())
        else:
            self._forget_host(row)
        self._described[row] = described
        self._states[row] = state
        self.capacity_tokens[row] = described.capacity_tokens
        self.is_reuse_safe[row] = described.is_reuse_safe
        self._rows_by_host.setdefault(described.host_id, set()).add(row)
        self._groups = None

    def remove(self, node: NodeId) -> None:
        """Fine for one that is not there."""
        row = self.row_by_node.pop(node, None)
        if row is None:
            return
        self._forget_host(row)
        self._described[row] = None
        self._draining.discard(row)
        for column in (self.busy_until_s, self.reported_queue_s):
            column[row] = 0.0
        for counts in (
            self.num_promised,
            self.num_reported,
            self.reserved_tokens,
            self.last_chosen,
        ):
            counts[row] = 0
        self.decode_slots.clear(row)
        self._free.append(row)
        self._groups = None

    def set_state(self, node: NodeId, state: NodeState) -> None:
        row = self.row_by_node.get(node)
        if row is not None and self._states[row] != state:
            self._states[row] = state
            self._groups = None

    def set_draining(self, node: NodeId, is_draining: bool) -> None:
        """It finishes what it has and takes nothing new: `rows` leaves it out."""
        row = self.row_by_node.get(node)
        if row is not None and is_draining != (row in self._draining):
            self._draining ^= {row}
            self._groups = None

    def set_cost(self, node: NodeId, cost: CostModel) -> None:
        row = self.row_by_node.get(node)
        if row is not None and self._costs[row] != cost:
            self._write_cost(row, cost)

    # -- what a decision asks ------------------------------------------------------------------------------------

    def cost(self, node: NodeId) -> CostModel:
        """The default of one that is not there."""
        row = self.row_by_node.get(node)
        return CostModel() if row is None else self._costs[row]

    def costs(self, rows: Rows) -> CostColumns:
        return CostColumns(self.terms.take(rows, axis=1))

    def models(self) -> list[str]:
        self._grouped()
        return sorted(self._namespaces)

    def namespaces(self, model: str) -> list[bytes]:
        """Of instances that are not dead, sorted; those of dead ones do not count."""
        self._grouped()
        return self._namespaces.get(model, [])

    def rows(self, model: str, namespace: bytes, role: InstanceRole, state: NodeState) -> Rows:
        return self._grouped().get((model, namespace, role, state), _NO_ROWS)

    def node(self, row: int) -> NodeId:
        return self.described(row).node

    def described(self, row: int) -> InstanceDescription:
        described = self._described[row]
        assert described is not None, "a row in use is described"
        return described

    def by_host(self, tokens: dict[HostId, int]) -> Ints:
        """A column of what each row's host has."""
        column = np.zeros(len(self._described), np.int64)
        for host, count in tokens.items():
            for row in self._rows_by_host.get(host, ()):
                column[row] = count
        return column

    def by_node(self, tokens: dict[NodeId, int]) -> Ints:
        """A column of what each row itself has."""
        column = np.zeros(len(self._described), np.int64)
        for node, count in tokens.items():
            row = self.row_by_node.get(node)
            if row is not None:
                column[row] = count
        return column

    def view(self, row: int, queue_s: float) -> InstanceView:
        """A picture of one row."""
        described = self.described(row)
        return InstanceView(
            node=described.node,
            role=described.role,
            host_id=described.host_id,
            state=self._states[row],
            model=described.model,
            namespace=described.namespace,
            cost=self._costs[row],
            queue_s=queue_s,
            num_requests=max(int(self.num_promised[row]), int(self.num_reported[row])),
            capacity_tokens=described.capacity_tokens,
            reserved_tokens=int(self.reserved_tokens[row]),
            last_chosen=int(self.last_chosen[row]),
            is_reuse_safe=described.is_reuse_safe,
        )

    # -- inside --------------------------------------------------------------------------------------------------

    def _grouped(self) -> dict[tuple[str, bytes, InstanceRole, NodeState], Rows]:
        if self._groups is not None:
            return self._groups
        found: dict[tuple[str, bytes, InstanceRole, NodeState], list[int]] = {}
        namespaces: dict[str, set[bytes]] = {}
        for _, row in sorted(self.row_by_node.items()):
            described, state = self.described(row), self._states[row]
            if row not in self._draining:
                key = (described.model, described.namespace, described.role, state)
                found.setdefault(key, []).append(row)
            known = namespaces.setdefault(described.model, set())
            if state != "dead":
                known.add(described.namespace)
        self._namespaces = {model: sorted(known) for model, known in namespaces.items()}
        self._groups = {key: np.array(rows, np.intp) for key, rows in found.items()}
        return self._groups

    def _write_cost(self, row: int, cost: CostModel) -> None:
        self._costs[row] = cost
        self.terms[:, row] = (
            cost.fixed_s,
            cost.token_s,
            cost.token_context_s,
            cost.step_s,
            cost.load_token_s,
            cost.remote_load_factor,
            cost.sequence_s,
            cost.context_token_s,
        )

    def _new_row(self) -> int:
        if not self._free:
            self._grow()
        return self._free.pop()

    def _grow(self) -> None:
        old = len(self._described)
        for name in (
            "busy_until_s",
            "reported_queue_s",
            "num_promised",
            "num_reported",
            "capacity_tokens",
            "reserved_tokens",
            "last_chosen",
            "is_reuse_safe",
        ):
            setattr(self, name, np.pad(getattr(self, name), (0, old)))
        self.terms = np.pad(self.terms, ((0, 0), (0, old)))
        self.decode_slots.add_rows(old)
        self._described += [None] * old
        self._states += ["alive"] * old
        self._costs += [CostModel()] * old
        self._free += range(2 * old - 1, old - 1, -1)

    def _forget_host(self, row: int) -> None:
        host = self.described(row).host_id
        rows = self._rows_by_host[host]
        rows.discard(row)
        if not rows:
            del self._rows_by_host[host]
