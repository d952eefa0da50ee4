"""What versions that nodes report say of other masters than this one. No claim that is made up ends a master."""

from typing import Final

from daemons.core.ids import Incarnation, NodeId
from daemons.protocol.report import Report
from daemons.store.directory.names import NameTable, may_be_given

_MAX_ANNOUNCED: Final = 65_536


class OtherLives:
    """Loop thread only."""

    def __init__(self, names: NameTable, incarnation: Incarnation) -> None:
        self._names = names
        self._incarnation = incarnation
        self._announcing: set[NodeId] = set()
        """Nodes whose announcement has begun and not ended."""
        self._have_announced: set[NodeId] = set()
        """Nodes that told this master all they have: what they got since is from its life."""

    def on_gone(self, node: NodeId) -> None:
        """Its announcement will not go on."""
        self._announcing.discard(node)

    def shown_by(self, report: Report) -> Incarnation | None:
        """Of a master that this one is not above, as what the node has of it shows: our state directory was lost.

        For one of our own number the first announcement of a node shows it. What comes later with such a version was
        found late in a lower tier, or is an invention: we only go on above it. Numbers that no master gives out show
        nothing.
        """
        node = report.node
        if report.sequence <= 1:
            self._announcing.add(node)
        is_first = node in self._announcing and node not in self._have_announced
        if not report.is_announcing:
            self._announcing.discard(node)
            if len(self._have_announced) < _MAX_ANNOUNCED:
                self._have_announced.add(node)
        newest = _newest_version(report)
        lived = self._names.lived_with(newest)
        if lived == self._incarnation and not is_first:
            self._names.skip_to(newest)
            return None
        return lived


def _newest_version(report: Report) -> int:
    """That a master may have given out; 0 where there is none."""
    dead = [each.version for each in report.dead]
    newest = max([report.sealed.newest_version(), *dead])
    if may_be_given(newest):
        return newest
    return max(filter(may_be_given, [*report.sealed.versions(), *dead]), default=0)
