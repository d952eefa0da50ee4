"""Replies of the two endpoints, whole or as server-sent events, in OpenAI's shapes. Pure.

Beside them each whole reply, and the last event of a stream, has an object `mooncake`: where the request ran and what
it reused. Clients that do not know it ignore it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from daemons.client.generate import GenerationEnd
from daemons.protocol.request import Timing

DONE: Final = b"data: [DONE]\n\n"

Finish = Literal["stop", "length"]


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Mooncake(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster did for one answer. Nodes' measurements are absent when the node did not report."""

    request_id: str
    prefill: str
    decode: str
    reused_tokens: int
    published_blocks: int
    ttft_s: float
    predicted_ttft_s: float
    pulled_bytes: int
    loaded_bytes: int
    num_retries: int
    timing: dict[str, float]


@dataclass(frozen=True, slots=True)
class ChoiceResult:
    """One finished answer."""

    text: str
    finish: Finish
    num_prompt_tokens: int
    num_tokens: int
    mooncake: Mooncake


def describe_end(end: GenerationEnd, ttft_s: float) -> Mooncake:
    reply = end.reply
    timing = reply.timing if reply is not None else Timing()
    return Mooncake(
        request_id=end.request_id,
        prefill=end.plan.prefill.node if end.plan is not None else "",
        decode=end.plan.decode.node if end.plan is not None else "",
        reused_tokens=reply.num_reused_tokens if reply is not None else 0,
        published_blocks=reply.num_published_blocks if reply is not None else 0,
        ttft_s=ttft_s,
        predicted_ttft_s=end.plan.predicted_ttft_s if end.plan is not None else 0.0,
        pulled_bytes=timing.pulled_bytes,
        loaded_bytes=timing.loaded_bytes,
        num_retries=end.num_retries,
        timing=msgspec.structs.asdict(timing),
    )


def usage_of(results: Sequence[ChoiceResult]) -> Usage:
    prompt = sum(result.num_prompt_tokens for result in results)
    completion = sum(result.num_tokens for result in results)
    cached = sum(result.mooncake.reused_tokens for result in results)
    return Usage(prompt, completion, prompt + completion, PromptDetails(cached))


class Shape(Protocol):
    """How one endpoint spells its replies."""

    @property
    def envelope(self) -> "Envelope": ...

    def whole(self, results: Sequence[ChoiceResult]) -> bytes: ...

    def opening(self, index: int) -> bytes | None:
        """The event before a choice's first text, if the endpoint has one."""
        ...

    def delta(self, index: int, text: str) -> bytes: ...

    def finish(self, index: int, finish: Finish, mooncake: Mooncake | None) -> bytes: ...

    def usage(self, results: Sequence[ChoiceResult]) -> bytes: ...


class _Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class _ChatMessage(msgspec.Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class _ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: _ChatMessage
    finish_reason: Finish
    logprobs: None = None


class _ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: _Delta
    finish_reason: Finish | None = None
    logprobs: None = None


class _TextChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: Finish | None = None
    logprobs: None = None


AnyChoice = _ChatChoice | _ChatChunkChoice | _TextChoice


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[AnyChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    mooncake: Mooncake | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all events of one reply share. `has_usage`: the client asked for a last event with the usage."""

    id: str
    model: str
    created: int
    has_usage: bool = False

    def reply(
        self,
        kind: str,
        choices: list[AnyChoice],
        usage: Usage | msgspec.UnsetType | None = msgspec.UNSET,
        mooncake: Mooncake | None = None,
    ) -> bytes:
        return _encode(
            _Reply(
                id=self.id,
                object=kind,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage,
                mooncake=msgspec.UNSET if mooncake is None else mooncake,
            )
        )

    def event(
        self,
        kind: str,
        choices: list[AnyChoice],
        usage: Usage | None = None,
        mooncake: Mooncake | None = None,
    ) -> bytes:
        shown = usage if self.has_usage else msgspec.UNSET
        return b"data: " + self.reply(kind, choices, shown, mooncake) + b"\n\n"


@dataclass(frozen=True, slots=True)
class ChatShape:
    """/v1/chat/completions"""

    envelope: Envelope

    def whole(self, results: Sequence[ChoiceResult]) -> bytes:
        choices: list[AnyChoice] = [
            _ChatChoice(index, _ChatMessage(result.text), result.finish)
            for index, result in enumerate(results)
        ]
        return self.envelope.reply(
            "chat.completion", choices, usage_of(results), results[0].mooncake
        )

    def opening(self, index: int) -> bytes | None:
        return self._event(_ChatChunkChoice(index, _Delta("assistant", "")))

    def delta(self, index: int, text: str) -> bytes:
        return self._event(_ChatChunkChoice(index, _Delta(content=text)))

    def finish(self, index: int, finish: Finish, mooncake: Mooncake | None) -> bytes:
        return self._event(_ChatChunkChoice(index, _Delta(), finish), mooncake)

    def usage(self, results: Sequence[ChoiceResult]) -> bytes:
        return self.envelope.event(
            "chat.completion.chunk", [], usage_of(results), results[0].mooncake
        )

    def _event(self, choice: AnyChoice, mooncake: Mooncake | None = None) -> bytes:
        return self.envelope.event("chat.completion.chunk", [choice], None, mooncake)


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """/v1/completions"""

    envelope: Envelope

    def whole(self, results: Sequence[ChoiceResult]) -> bytes:
        choices: list[AnyChoice] = [
            _TextChoice(index, result.text, result.finish) for index, result in enumerate(results)
        ]
        return self.envelope.reply(
            "text_completion", choices, usage_of(results), results[0].mooncake
        )

    def opening(self, index: int) -> bytes | None:
        return None

    def delta(self, index: int, text: str) -> bytes:
        return self._event(_TextChoice(index, text))

    def finish(self, index: int, finish: Finish, mooncake: Mooncake | None) -> bytes:
        return self._event(_TextChoice(index, "", finish), mooncake)

    def usage(self, results: Sequence[ChoiceResult]) -> bytes:
        return self.envelope.event("text_completion", [], usage_of(results), results[0].mooncake)

    def _event(self, choice: AnyChoice, mooncake: Mooncake | None = None) -> bytes:
        return self.envelope.event("text_completion", [choice], None, mooncake)


def now_unix() -> int:
    """`created` is the only wall-clock time that clients see."""
    return int(time.time())


class ListedNamespaces(msgspec.Struct, frozen=True, kw_only=True):
    """Which weights, dtype and numerics answer for a name, as hex; `others` serve it too but are not asked now."""

    namespace: str
    others: list[str]


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    max_model_len: int | None
    mooncake: ListedNamespaces
    object: str = "model"
    owned_by: str = "mooncake"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ListedModel]
    object: str = "list"
