"""mcctl request send: one prompt, its answer as it comes, and what was reused."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from daemons.core.errors import NotFound, Unavailable
from daemons.core.units import format_duration, format_size
from mcctl import render
from mcctl.gateway_url import gateway_url
from mcctl.openai_stream import Answer, Body, Mooncake, OpenAiClient
from mcctl.output_schema import prints
from mcctl.prompt_text import read_text
from mcctl.settings import settings_of

_SILENCE_S = 120.0


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `--output json` prints; fields are only ever added."""

    answer: str
    finish_reason: str
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    ttft_s: float
    tbt_s: float | None
    total_s: float
    mooncake: Mooncake


@prints(SendResult)
def send(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Option(help="The text itself.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the text; - for stdin.")] = None,
    system: Annotated[str | None, typer.Option(help="System message before it.")] = None,
    model: Annotated[str | None, typer.Option(help="Needed only where several are served.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Of sampling.")] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Neither reuse KV nor keep it.")
    ] = False,
    no_drafts: Annotated[
        bool, typer.Option("--no-drafts", help="One token a step of decode: slower, says the same.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The text is a whole prompt, not a chat message.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(help="The gateway, e.g. http://10.0.0.1:8000; else the master knows one."),
    ] = None,
) -> None:
    """Stream an answer, then say what was reused and where it ran.

    \b
    Example: mcctl request send --prompt "What is a lighthouse?"
    Example: mcctl request send --file q.txt --system "Be brief." --seed 1
    """
    settings = settings_of(context)
    if url is not None and not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--url {url}: write http://HOST:PORT")
    text = read_text(prompt, file)
    body: Body = {"max_tokens": max_tokens, "temperature": temperature}
    if seed is not None:
        body["seed"] = seed
    if no_cache:
        body["kv_cache"] = "bypass"
    if no_drafts:
        body["drafts"] = False
    is_json = settings.output == "json"
    where = gateway_url(settings, url)
    silence_s = max(_SILENCE_S, settings.wait_s)
    with (
        OpenAiClient(where, timeout_s=silence_s, api_key=settings.api_key) as client,
        render.waiting(f"waiting for the first token from {where}") as stop_waiting,
    ):

        def on_piece(piece: str) -> None:
            if not is_json:
                stop_waiting()
                render.emit_text(piece)

        body["model"] = model or _only_model(client)
        if raw:
            answer = client.complete(body | {"prompt": text}, on_piece)
        else:
            messages = [{"role": "user", "content": text}]
            if system is not None:
                messages.insert(0, {"role": "system", "content": system})
            answer = client.chat(body | {"messages": messages}, on_piece)
    if is_json:
        render.emit_json(_result(answer))
    else:
        render.emit_line("")
        render.note(_summary(answer))


def _only_model(client: OpenAiClient) -> str:
    models = client.models()
    if not models:
        raise Unavailable("no model is served yet; `mcctl node list` shows who has joined")
    if len(models) > 1:
        raise NotFound(f"choose a model with --model; served now: {', '.join(models)}")
    return models[0]


def _result(answer: Answer) -> SendResult:
    return SendResult(
        answer=answer.text,
        finish_reason=answer.finish,
        prompt_tokens=answer.prompt_tokens,
        reused_tokens=answer.cached_tokens,
        generated_tokens=answer.completion_tokens,
        ttft_s=answer.ttft_s,
        tbt_s=answer.tbt_s,
        total_s=answer.total_s,
        mooncake=answer.mooncake,
    )


def _summary(answer: Answer) -> str:
    ran = answer.mooncake
    between = "" if answer.tbt_s is None else f", then {format_duration(answer.tbt_s)} a token"
    moved = format_size(ran.loaded_bytes + ran.pulled_bytes)
    return (
        f"[{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens reused; "
        f"first text after {format_duration(answer.ttft_s)}{between}; "
        f"{answer.completion_tokens} tokens, {answer.finish}; ran on {ran.prefill} > {ran.decode}, {moved} moved]"
    )
