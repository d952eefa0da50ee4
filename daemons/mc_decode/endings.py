"""What is said of a request that has ended: to who asked, to the master, and why its time was too short."""

from daemons.core.errors import McError, Unavailable
from daemons.core.ids import NodeId
from daemons.mc_decode.request import Request
from daemons.protocol.request import FinishReason, GenerateReply, RequestDone, Timing


def answered(
    request: Request, finish: FinishReason, timing: Timing, node: NodeId
) -> tuple[GenerateReply, RequestDone]:
    """(to who asked, to the master). It has its first token, so prefill has replied."""
    reply = request.reply
    assert reply is not None
    num_generated = len(request.tokens)
    return GenerateReply(
        finish_reason=finish,
        num_prompt_tokens=request.num_prompt_tokens,
        num_reused_tokens=reply.num_reused_tokens,
        num_generated_tokens=num_generated,
        num_published_blocks=reply.num_published_blocks + request.num_published,
        timing=timing,
        prefill_node=request.message.plan.prefill.node,
        decode_node=node,
    ), RequestDone(
        request_id=request.message.request_id,
        node=node,
        ok=True,
        num_reused_tokens=reply.num_reused_tokens,
        num_generated_tokens=num_generated,
        timing=timing,
        is_cancelled=request.given_up is not None,
        why=request.given_up or "",
    )


def failed(request: Request, error: McError, node: NodeId) -> RequestDone:
    """To the master."""
    return RequestDone(
        request_id=request.message.request_id,
        node=node,
        ok=False,
        is_cancelled=request.given_up is not None,
        why=request.given_up or str(error),
    )


def too_late(request: Request, took_s: float, num_before: int, node: NodeId) -> Unavailable:
    """`num_before`: others that waited before it, where it waits."""
    doing = {
        "waiting": f"waited for KV room behind {num_before} others",
        "filling": "waited for its prefill",
        "decoding": f"was at token {len(request.tokens)}",
    }
    return Unavailable(
        f"the request's time ended after {took_s:.1f} s on decode node {node}, "
        f"where it {doing[request.state]}; ask for less, or allow more time"
    )
