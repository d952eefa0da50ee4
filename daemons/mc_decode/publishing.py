"""Which blocks of an answer may be offered to the pool.

Measured and checked by the start-up canary of every instance: KV that decode steps wrote is bit-equal to what prefill
would write for the same tokens (daemons/engine/runner.py), so the next turn of a conversation may reuse an answer.
Where the canary disagrees, `is_decode_canonical` is False and nothing here is called.
"""

from daemons.client.publisher import block_meta
from daemons.engine.instance import Instance
from daemons.mc_decode.request import Request
from daemons.protocol.block import PutBlock
from daemons.protocol.prefix_hash import block_hashes, tenant_namespace


def blocks_to_offer(instance: Instance, request: Request) -> list[PutBlock]:
    """Empty where the plan names no cache node, or nothing of this request or instance is for others."""
    model = instance.model
    if request.message.plan.put_target is None or request.message.cache == "bypass":
        return []
    if not (model.is_reuse_safe and model.is_decode_canonical):
        return []
    return answer_blocks(instance, request)


def answer_blocks(instance: Instance, request: Request) -> list[PutBlock]:
    """Full blocks that end in the answer. The last token has no KV: it was sampled, never fed."""
    message, slot = request.message, request.slot
    assert slot is not None
    block_tokens = instance.geometry.block_tokens
    tokens = [*message.tokens, *request.tokens[:-1]]
    namespace = tenant_namespace(message.namespace, message.tenant)
    hashes = block_hashes(namespace, tokens, block_tokens)
    return [
        PutBlock(
            meta=block_meta(message, hashes, index, block_tokens),
            source=instance.source(slot, index * block_tokens, (index + 1) * block_tokens),
            num_layers=instance.geometry.num_layers,
        )
        for index in range(request.num_prompt_tokens // block_tokens, len(hashes))
    ]
