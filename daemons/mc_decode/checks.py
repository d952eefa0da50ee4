"""What a request has to be like for this instance to serve it, whatever else it is doing."""

from daemons.core.errors import Rejected
from daemons.core.ids import NodeId
from daemons.protocol.node import ModelDescription
from daemons.protocol.request import Generate
from daemons.service.prompt_checks import check_namespace, check_token_ids


def check_request(message: Generate, model: ModelDescription, node: NodeId) -> None:
    """Raises Unavailable where another instance may serve it, Rejected where none of this model can."""
    check_namespace(message.namespace, model, f"decode node {node}")
    total = len(message.tokens) + message.sampling.max_tokens
    if not message.tokens or message.sampling.max_tokens < 1:
        raise Rejected("a request needs at least one prompt token and max_tokens >= 1")
    if total > model.max_context_tokens:
        raise Rejected(
            f"{len(message.tokens)} prompt tokens + max_tokens {message.sampling.max_tokens} exceed "
            f"the {model.max_context_tokens} tokens this instance can hold; shorten one of them"
        )
    check_token_ids(message.tokens, model)
