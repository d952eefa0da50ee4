"""What is known of names: present, on nodes that are away, absent, or not sure yet."""

from collections.abc import Sequence

from daemons.mc_master.names.keeper import NameKeeper
from daemons.mc_master.state import MasterState
from daemons.protocol.name_hash import name_key
from daemons.store.directory.columns import NO_ROW

ABSENT, PRESENT, UNREACHABLE, REBUILDING = range(4)
"""As in protocol/objects.py."""


class Presence:
    """Loop thread only."""

    def __init__(self, state: MasterState, keeper: NameKeeper) -> None:
        self._state = state
        self._keeper = keeper

    def rows(self, namespace: bytes, names: Sequence[bytes]) -> list[int]:
        find = self._state.directory.blocks.rows_by_name.get(namespace, {}).get
        return [find(name, NO_ROW) for name in names]

    def exist(self, namespace: bytes, names: Sequence[bytes]) -> bytes:
        """Mostly all that is known by name can be read: then one look-up each says it."""
        directory = self._state.directory
        if directory.replicas.is_all_readable(now_s=self._state.now_s()):
            of_namespace = directory.blocks.rows_by_name.get(namespace, {})
            states = bytes(map(of_namespace.__contains__, names))
            if ABSENT not in states or self._is_absence_sure():
                return states
        return self.states(namespace, names, self.rows(namespace, names))

    def states(self, namespace: bytes, names: Sequence[bytes], rows: Sequence[int]) -> bytes:
        directory = self._state.directory
        states = directory.presence(rows, now_s=self._state.now_s())
        if ABSENT not in states:
            return bytes(states)
        absent = REBUILDING if self._keeper.is_rebuilding() else ABSENT
        if directory.away or absent:
            for index, state in enumerate(states):
                if state == ABSENT and rows[index] == NO_ROW:
                    is_away = name_key(namespace, names[index]) in directory.away
                    states[index] = UNREACHABLE if is_away else absent
        return bytes(states)

    def _is_absence_sure(self) -> bool:
        return not self._state.directory.away and not self._keeper.is_rebuilding()
