"""Offering new blocks to the pool: the cache node pulls them from our memory, we only say where they are."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from daemons.client.channel_pool import ChannelPool
from daemons.core.errors import McError
from daemons.core.ids import BlockHash, new_put_id
from daemons.core.units import MIB
from daemons.protocol.block import BlockMeta, Put, PutBlock, PutReply
from daemons.protocol.messages import Reply
from daemons.protocol.prefix_hash import root_hash, tenant_namespace
from daemons.protocol.request import Generate, Prefill, PutTarget

log = logging.getLogger(__name__)

_PUT_TIMEOUT_S = 15.0
_GROUP_BYTES: Final = 256 * MIB
"""Of one put, which ends as a whole: a slow network brings this much well within its time."""
_GROUP_BLOCKS: Final = 256
"""A cache node lets a bounded number wait for room."""


class Publisher:
    """Best effort: a refused or lost put only means a later miss. Loop thread only."""

    def __init__(self, channels: ChannelPool) -> None:
        self._channels = channels

    def offer(
        self,
        target: PutTarget,
        blocks: Sequence[PutBlock],
        on_done: Callable[[int], object],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_done(blocks now in the pool)` comes exactly once: until then the source must keep its bytes,
        or raise its generation. A group is put after another; one that is not all taken is the last, and none is put
        any more once they are not wanted.
        """
        block_bytes = max(1, blocks[0].source.ranges.length)
        size = min(_GROUP_BLOCKS, max(1, _GROUP_BYTES // block_bytes))
        num_stored = 0

        def put_group(first: int) -> None:
            group = blocks[first : first + size]

            def on_group(num_new: int) -> None:
                nonlocal num_stored
                num_stored += num_new
                if num_new == len(group) and first + size < len(blocks) and is_wanted():
                    put_group(first + size)
                else:
                    on_done(num_stored)

            self._put(target, group, on_group)

        put_group(0)

    def _put(
        self, target: PutTarget, blocks: Sequence[PutBlock], on_done: Callable[[int], object]
    ) -> None:
        def on_reply(reply: Reply | McError) -> None:
            stored = 0
            if isinstance(reply, PutReply):
                stored = sum(status in ("stored", "already_sealed") for status in reply.results)
                if stored < len(blocks):
                    log.info("put refused node=%s why=%s", target.node, reply.why)
            else:
                log.info("put failed node=%s why=%s", target.node, reply)
            on_done(stored)

        try:
            self._channels.get(target.control).request(
                Put(put_id=new_put_id(), blocks=list(blocks)),
                timeout_s=_PUT_TIMEOUT_S,
                on_reply=on_reply,
            )
        except McError as error:
            on_reply(error)


def block_meta(
    request: Generate | Prefill, hashes: Sequence[BlockHash], index: int, block_tokens: int
) -> BlockMeta:
    """The directory's view of block `index` of a request whose chain is `hashes`."""
    root = root_hash(tenant_namespace(request.namespace, request.tenant))
    return BlockMeta(
        hash=hashes[index],
        parent=hashes[index - 1] if index else root,
        namespace=request.namespace,
        depth=index,
        num_tokens=block_tokens,
        model=request.model,
        tenant=request.tenant,
    )
