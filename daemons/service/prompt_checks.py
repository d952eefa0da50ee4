"""What prefill and decode instances both ask of a request: that it is for their model, in tokens that the model has."""

from collections.abc import Sequence

from daemons.core.errors import Rejected, Unavailable
from daemons.protocol.node import ModelDescription


def check_namespace(namespace: bytes, model: ModelDescription, who: str) -> None:
    """Raises Unavailable: KV of other weights or numerics must not meet, and another instance may have these."""
    if namespace != model.namespace:
        raise Unavailable(f"{who} serves {model.name} with other weights or numerics; plan again")


def check_token_ids(tokens: Sequence[int], model: ModelDescription) -> None:
    """Of at least one token. Raises Rejected."""
    if not 0 <= min(tokens) <= max(tokens) < model.vocab_size:
        raise Rejected(f"token ids must be in 0..{model.vocab_size - 1}")
