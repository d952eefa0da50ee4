"""What is told and counted of replicas that went: why, and whether the block is elsewhere now."""

from collections.abc import Sequence
from typing import assert_never

from daemons.core.ids import BlockHash
from daemons.mc_master.state import MasterState
from daemons.protocol.block import RemovalReason
from daemons.protocol.event import BlocksMoved, BlocksRemoved
from daemons.store.directory.slot_table import Place


class Removals:
    """Loop thread only. The directory has them recorded already."""

    def __init__(self, state: MasterState) -> None:
        self._state = state

    def tell(self, place: Place, hashes: Sequence[BlockHash], why: RemovalReason) -> None:
        """Of blocks that had a replica at this place until now."""
        if not hashes:
            return
        state = self._state
        match why:
            case "cleared":
                state.num_cleared += len(hashes)
                state.metrics.cleared_blocks.inc(len(hashes))
            case "evicted":
                state.num_evicted += len(hashes)
                state.metrics.evicted_blocks.inc(len(hashes))
            case "bad":
                state.metrics.bad_blocks.inc(len(hashes))
            case "node_left":
                pass
            case _:
                assert_never(why)
        incarnation, (node, tier) = state.incarnation, place
        if why == "evicted" and (state.moved_to or len(state.directory.slots.numbers_of(node)) > 1):
            hashes = self._publish_moved(place, hashes)
        state.out.publish(
            BlocksRemoved(
                incarnation=incarnation, hashes=list(hashes), node=node, why=why, tier=tier
            )
        )

    def _publish_moved(self, place: Place, hashes: Sequence[BlockHash]) -> list[BlockHash]:
        """What was freed there may have been copied before: to another node, as it was told, or to a lower tier.

        Returns the others.
        """
        by_target: dict[Place | None, list[BlockHash]] = {}
        for block_hash in hashes:
            by_target.setdefault(self._moved_to(place, block_hash), []).append(block_hash)
        gone = by_target.pop(None, [])
        for target, moved in by_target.items():
            assert target is not None, "None was taken out"
            self._state.out.publish(
                BlocksMoved(
                    incarnation=self._state.incarnation,
                    hashes=moved,
                    node=target[0],
                    tier=target[1],
                    from_node=place[0],
                    from_tier=place[1],
                )
            )
        return gone

    def _moved_to(self, place: Place, block_hash: BlockHash) -> Place | None:
        state = self._state
        node = state.moved_to.pop((place[0], block_hash), None) if state.moved_to else None
        if node is not None and state.directory.length_on((node, "dram"), block_hash):
            return node, "dram"
        below = state.directory.tier_below(place, block_hash)
        return None if below is None else (place[0], below)
