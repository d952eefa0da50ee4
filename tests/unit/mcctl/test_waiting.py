"""What waiting says when it gives up, and when it is over."""

from typing import cast

import pytest

from daemons.client.cluster import ClusterClient
from daemons.core.errors import Unavailable
from daemons.core.ids import Epoch, HostId, Incarnation, NodeId
from daemons.protocol.node import ListedNode, ListNodesReply, NodeDescription
from daemons.protocol.replication import ReplicateReply
from mcctl import waiting

NODE = NodeId("cachenode-1")
DESCRIBED = NodeDescription(
    node=NODE, role="cachenode", host="h", host_id=HostId("h"), epoch=Epoch(1), control="tcp://m:1", pid=1, software="1"
)  # fmt: skip


class OneNode:
    """The answers of a master whose only node has nowhere to drain to."""

    def nodes(self) -> ListNodesReply:
        listed = ListedNode(
            node=DESCRIBED, state="alive", load=None, used_bytes=5, capacity_bytes=10, num_blocks=2, joined_s=1.0,
            last_beat_s=0.1, is_draining=True, left_blocks=2, left_bytes=5,
        )  # fmt: skip
        return ListNodesReply(incarnation=Incarnation(1), master=DESCRIBED, nodes=[listed])


@pytest.mark.parametrize("timeout_s", [0.0, None])
def test_a_node_that_cannot_be_drained_stays_so_and_the_error_says_how_to_end_it(
    timeout_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STUCK_S", -1.0)
    with pytest.raises(
        Unavailable,
        match=r"cachenode-1 is still draining; `mcctl node undrain cachenode-1` takes it back",
    ):
        waiting.until_drained(cast(ClusterClient, OneNode()), NODE, timeout_s, lambda _: None)


def test_blocks_that_have_all_left_the_node_they_were_chosen_by_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 0.0)
    replies = iter([ReplicateReply(num_blocks=n, num_left=n, num_domains=2) for n in (5, 2, 0)])
    assert waiting.until_copied(lambda: next(replies), lambda _: None).num_blocks == 5
