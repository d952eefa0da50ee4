"""What a prompt has to be like for this instance to compute it, whatever else it is doing."""

from daemons.core.errors import Rejected, Unavailable
from daemons.protocol.node import ModelDescription
from daemons.protocol.prefix_hash import name_prompt, tenant_namespace
from daemons.protocol.request import Prefill


def check_prompt(request: Prefill, model: ModelDescription) -> None:
    """Raises Unavailable where another instance may compute it, Rejected where none of this model can."""
    if request.namespace != model.namespace:
        raise Unavailable(
            f"this prefill node serves {model.name} with other weights or numerics; plan again"
        )
    if not 0 < len(request.tokens) <= model.max_context_tokens:
        raise Rejected(
            f"{len(request.tokens)} prompt tokens; this instance takes 1..{model.max_context_tokens}"
        )
    if not 0 <= min(request.tokens) <= max(request.tokens) < model.vocab_size:
        raise Rejected(f"token ids must be in 0..{model.vocab_size - 1}")
    _check_names(request, model)


def _check_names(request: Prefill, model: ModelDescription) -> None:
    """Whatever went wrong before, KV is neither loaded nor published under the name of another prompt."""
    namespace = tenant_namespace(request.namespace, request.tenant)
    if not name_prompt(request.hashes, request.tokens, namespace, model.block_tokens):
        raise Rejected("the block hashes are not those of the prompt")
    matched = request.matched.hashes()
    if matched != request.hashes[: len(matched)]:
        raise Rejected("the matched blocks are not those of the prompt")
