"""What a request has to be like for this instance to serve it, whatever else it is doing."""

from daemons.core.errors import Rejected, Unavailable
from daemons.core.ids import NodeId
from daemons.protocol.node import ModelDescription
from daemons.protocol.request import Generate


def check_request(message: Generate, model: ModelDescription, node: NodeId) -> None:
    """Raises Unavailable where another instance may serve it, Rejected where none of this model can."""
    if message.namespace != model.namespace:
        raise Unavailable(
            f"decode node {node} serves {model.name} with other weights or numerics; plan again"
        )
    total = len(message.tokens) + message.sampling.max_tokens
    if not message.tokens or message.sampling.max_tokens < 1:
        raise Rejected("a request needs at least one prompt token and max_tokens >= 1")
    if total > model.max_context_tokens:
        raise Rejected(
            f"{len(message.tokens)} prompt tokens + max_tokens {message.sampling.max_tokens} exceed "
            f"the {model.max_context_tokens} tokens this instance can hold; shorten one of them"
        )
    if not 0 <= min(message.tokens) <= max(message.tokens) < model.vocab_size:
        raise Rejected(f"token ids must be in 0..{model.vocab_size - 1}")
