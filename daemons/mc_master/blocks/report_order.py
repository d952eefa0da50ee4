"""Reports of one life of a node are numbered from 1. The first after a Join begins the count; a lower number than
expected is a repeat and is passed over; number 1 (or 0) begins anew and voids what was known; a gap asks for an
announcement. What was known stays until the announcement begins.
"""

import logging
from collections.abc import Callable

from daemons.conductor.membership import Member
from daemons.core.ids import BlockHash, NodeId
from daemons.protocol.packed import SealedBlocks
from daemons.protocol.report import Report, ReportReply
from daemons.service.bounded_log import BOUNDED

log = logging.getLogger(__name__)


ClearedSince = Callable[[NodeId, SealedBlocks], set[BlockHash]]


def out_of_order(member: Member, report: Report, cleared_since: ClearedSince) -> ReportReply | None:
    """The answer to a report that is not to be recorded; None for one that is, and `member.has_old_blocks` says
    whether what was known before is void.

    A repeat is answered as the first one was, whose answer was lost: its node would keep what it is to free.
    """
    expected = member.next_sequence
    if expected is None or report.sequence == expected:
        return None
    if 1 < report.sequence < expected:
        return ReportReply(unwanted=list(cleared_since(report.node, report.sealed)))
    member.has_old_blocks = True
    if report.sequence > expected:
        log.info(
            "report gap node=%s expected=%d got=%d",
            report.node,
            expected,
            report.sequence,
            extra=BOUNDED,
        )
        member.next_sequence = None
        return ReportReply(announce=True)
    return None
