"""What a prompt has to be like for this instance to compute it, whatever else it is doing."""

from daemons.core.errors import Rejected
from daemons.protocol.node import ModelDescription
from daemons.protocol.prefix_hash import name_prompt, tenant_namespace
from daemons.protocol.request import Prefill
from daemons.service.prompt_checks import check_namespace, check_token_ids


def check_prompt(request: Prefill, model: ModelDescription) -> None:
    """Raises Unavailable where another instance may compute it, Rejected where none of this model can."""
    check_namespace(request.namespace, model, "this prefill node")
    if not 0 < len(request.tokens) <= model.max_context_tokens:
        raise Rejected(
            f"{len(request.tokens)} prompt tokens; this instance takes 1..{model.max_context_tokens}"
        )
    check_token_ids(request.tokens, model)
    _check_names(request, model)


def _check_names(request: Prefill, model: ModelDescription) -> None:
    """Whatever went wrong before, KV is neither loaded nor published under the name of another prompt."""
    namespace = tenant_namespace(request.namespace, request.tenant)
    if not name_prompt(request.hashes, request.tokens, namespace, model.block_tokens):
        raise Rejected("the block hashes are not those of the prompt")
    matched = request.matched.hashes()
    if matched != request.hashes[: len(matched)]:
        raise Rejected("the matched blocks are not those of the prompt")
