"""From what a client wrote to what a decode node gets: tokens, limits, block hashes.

Long texts are prepared in a worker thread, where the tokenizer runs without the GIL; short ones at once, since the
hop costs more than the work.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from daemons.client.generate import GenerationRequest
from daemons.core.errors import Rejected
from daemons.core.ids import RequestId
from daemons.mc_gateway.api_error import ApiError, bad_request
from daemons.mc_gateway.api_request import SEED_LIMIT, Options
from daemons.mc_gateway.catalog import ServedModel
from daemons.protocol.prefix_hash import block_hashes, tenant_namespace
from daemons.protocol.request import SamplingParams

INLINE_CHARS: Final = 4096
"""About a thousand tokens: 3 ms."""

MESSAGE_CHARS: Final = 64
"""What rendering one message costs, in characters to tokenize."""

Result = TypeVar("Result")


class Preparer:
    """Bounded workers for long prompts."""

    def __init__(self, num_workers: int = 2) -> None:
        self._workers = ThreadPoolExecutor(num_workers, thread_name_prefix="prompt")

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def chat(
        self,
        model: ServedModel,
        messages: Sequence[dict[str, object]],
        variables: dict[str, object],
    ) -> list[int]:
        """Raises ApiError 400 when the model's template refuses the messages."""
        size = sum(len(str(message["content"])) + MESSAGE_CHARS for message in messages)
        return await self._run(size, lambda: chat_tokens(model, messages, variables))

    async def completion(self, model: ServedModel, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, str):
            return await self._run(len(prompt), lambda: text_tokens(model, prompt))
        return checked_tokens(model, prompt)

    async def _run(self, size: int, work: Callable[[], Result]) -> Result:
        if size <= INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)


def chat_tokens(
    model: ServedModel,
    messages: Sequence[dict[str, object]],
    variables: dict[str, object] | None = None,
) -> list[int]:
    template = model.tokenizer.chat_template
    if template is None:
        raise bad_request(
            f"model {model.name!r} has no chat template; use /v1/completions", "messages"
        )
    try:
        text = template.render(messages, variables=variables)
    except Rejected as error:
        raise bad_request(error.message, "messages") from None
    return _encoded(model, text, "messages", add_special_tokens=False)


def text_tokens(model: ServedModel, text: str) -> list[int]:
    return _encoded(model, text, "prompt", add_special_tokens=True)


def checked_tokens(model: ServedModel, tokens: list[int]) -> list[int]:
    """Ids from the client, each within the model's vocabulary."""
    size = model.description.vocab_size
    for token in tokens:
        if not 0 <= token < size:
            raise bad_request(f"token id {token} is not below the vocabulary's {size}", "prompt")
    return tokens


def _encoded(model: ServedModel, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
    # A text that cannot fit is refused before megabytes of it are tokenized.
    at_least = len(text) // model.tokenizer.max_token_chars
    if at_least > model.description.max_context_tokens:
        raise too_long(f"at least {at_least}", None, model, param)
    try:
        return model.tokenizer.encode(
            text, add_special_tokens=add_special_tokens, scope=model.tenant
        )
    except UnicodeEncodeError:
        raise bad_request(
            "the text holds half a surrogate pair; send valid Unicode", param
        ) from None


def too_long(num_prompt: str, max_tokens: int | None, model: ServedModel, param: str) -> ApiError:
    context = model.description.max_context_tokens
    asked = f" and max_tokens={max_tokens}" if max_tokens is not None else ""
    return ApiError(
        400,
        f"the context of {model.name} is {context} tokens, but the prompt has {num_prompt} tokens{asked}; "
        "shorten the prompt" + (" or lower max_tokens" if asked else ""),
        param=param,
        code="context_length_exceeded",
    )


def fitted_max_tokens(
    model: ServedModel, num_prompt: int, options: Options, *, default: int, param: str
) -> int:
    """How many tokens may be generated; ApiError 400 when prompt and answer do not fit the context."""
    if num_prompt == 0:
        raise bad_request("the prompt has no tokens", param)
    room = model.description.max_context_tokens - num_prompt
    if room < 1 or (options.max_tokens is not None and options.max_tokens > room):
        raise too_long(str(num_prompt), options.max_tokens, model, param)
    return options.max_tokens if options.max_tokens is not None else min(default, room)


def generation_request(
    model: ServedModel,
    tokens: list[int],
    options: Options,
    *,
    max_tokens: int,
    request_id: RequestId,
) -> GenerationRequest:
    """Hashes begin at the tenant's own root: one tenant's blocks are no other's.

    Bypass when the client asks for it or reuse could change a token; it sends no hashes.
    """
    description = model.description
    salted = tenant_namespace(description.namespace, model.tenant)
    may_reuse = options.cache == "use" and description.is_reuse_safe
    seed = secrets.randbelow(SEED_LIMIT) if options.seed is None else options.seed
    return GenerationRequest(
        request_id=request_id,
        model=model.name,
        namespace=description.namespace,
        tokens=tokens,
        hashes=block_hashes(salted, tokens, description.block_tokens) if may_reuse else [],
        sampling=SamplingParams(
            max_tokens=max_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=seed,
            ignore_eos=options.ignore_eos,
        ),
        cache="use" if may_reuse else "bypass",
        drafts=options.drafts,
        tenant=model.tenant,
        priority=options.priority,
    )
