"""mcctl request: send a prompt and watch the answer, or see what became of recent ones."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import NotFound, Rejected, Unavailable
from daemons.core.ids import NodeId
from daemons.core.units import format_count, format_duration, format_size
from daemons.protocol.node import Role
from daemons.protocol.request_list import Ahead, ListedRequest
from mcctl import render
from mcctl.commands import new_app
from mcctl.gateway_url import gateway_url
from mcctl.openai_stream import Answer, Body, Mooncake, OpenAiClient
from mcctl.output_schema import prints
from mcctl.prompt_text import read_text
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.watching import watchable

app = new_app()

_SILENCE_S = 120.0
_GUESS = "; a guess: the prefill instance had not measured a prompt yet"
_AHEAD = {"staged": "staged ahead", "replicated": "replicated"}
_KEPT_REQUESTS = 1000
"""What a master lists at most."""


RequestId = Annotated[
    str | None,
    typer.Argument(
        help="As in `request list`, or its beginning; else the newest.", show_default=False
    ),
]


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that was considered. `compute_s`: of the new tokens; on decode, of one token of the batch."""

    node: str
    role: Role | Literal["gone"]
    is_chosen: bool
    queue_s: float
    load_s: float
    compute_s: float
    total_s: float
    matched_tokens: int
    delay_s: float = 0.0
    """What its work adds to the wait of those behind, not in `total_s`; 0 where the policy does not look at it."""
    device_tokens: int = 0
    """Of these, what lies in its own KV arena."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What `request explain --output json` prints; fields are only ever added."""

    request: ListedRequest
    candidates: list[Weighed]


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


@app.command()
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


@app.command("list")
@prints({"requests": list[ListedRequest]})
@watchable
def list_requests(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 20,
) -> None:
    """Recent requests, newest first, rejected ones too. Where they ran and what was predicted.

    \b
    Example: mcctl request list --limit 100 --output json
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        requests = client.requests(limit)
    columns = [
        Column("request", lambda r: r.request_id),
        Column("model", lambda r: r.model, extra=4),
        Column("state", lambda r: r.outcome + (f": {r.why}" if r.why else "")),
        Column("age", lambda r: format_duration(r.age_s), is_number=True, extra=2),
        Column("prompt", lambda r: str(r.num_prompt_tokens), is_number=True),
        Column("matched", lambda r: str(r.num_matched_tokens), is_number=True),
        Column("answer", lambda r: str(r.num_generated_tokens), is_number=True, extra=3),
        Column("TTFT", lambda r: _seconds(r.actual_ttft_s), is_number=True),
        Column("predicted", _predicted, is_number=True, extra=1),
        Column("TBT", lambda r: _seconds(r.actual_tbt_s), is_number=True, extra=6),
        Column("predicted TBT", lambda r: _seconds(r.predicted_tbt_s), is_number=True, extra=7),
        Column("ran on", _ran_on),
        Column("policy", lambda r: r.policy, extra=5),
    ]
    render.emit(settings.output, {"requests": requests}, columns, requests)


@app.command()
@prints(ListedRequest)
def show(
    context: typer.Context,
    request_id: RequestId = None,
) -> None:
    """One recent request: where it ran, what it reused and took.

    And what was predicted. The newest where none is named.

    \b
    Example: mcctl request show 7f3a
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        request = find(client.requests(_KEPT_REQUESTS), request_id)
    facts = [
        ("model", request.model),
        *_facts(request),
        ("ran on", _ran_on(request)),
        ("answer", f"{request.num_generated_tokens} tokens"),
        ("age", format_duration(request.age_s)),
    ]
    if settings.output == "json":
        render.emit_json(request)
    else:
        render.emit_facts(settings.output, facts)


@app.command()
@prints(Explanation)
def explain(
    context: typer.Context,
    request_id: RequestId = None,
) -> None:
    """Why a recent request ran where it did, or was rejected. Every instance that was weighed, with the terms of its
    prediction, what the request took, and blocks that were staged while it was queued, or replicated for its heat.

    \b
    Example: mcctl request explain 7f3a
    """
    settings = settings_of(context)
    with ClusterClient(settings.master, settings.wait_s, settings.key_file) as client:
        request = find(client.requests(_KEPT_REQUESTS), request_id)
        roles = {listed.node.node: listed.node.role for listed in client.nodes().nodes}
    result = Explanation(request=request, candidates=weighed(request, roles))
    if settings.output == "table":
        render.show_facts(_facts(request))
    columns = [
        Column(" ", lambda c: "*" if c.is_chosen else ""),
        Column("role", lambda c: c.role),
        Column("node", lambda c: c.node),
        Column("queue", lambda c: format_duration(c.queue_s), is_number=True),
        Column("load", lambda c: format_duration(c.load_s), is_number=True),
        Column("compute", lambda c: format_duration(c.compute_s), is_number=True),
        Column("total", lambda c: format_duration(c.total_s), is_number=True),
        Column("delays others", lambda c: format_duration(c.delay_s), is_number=True, extra=2),
        Column("reuses", lambda c: f"{c.matched_tokens} tokens", is_number=True),
        Column("on device", lambda c: f"{c.device_tokens} tokens", is_number=True, extra=1),
    ]
    title = "* was chosen" if request.prefill is not None else "none was chosen"
    render.emit(settings.output, result, columns, result.candidates, title=title)


def _facts(request: ListedRequest) -> list[tuple[str, str]]:
    guess = _GUESS if request.is_guess else ""
    return [
        ("request", f"{request.request_id}, {request.outcome} {request.why}".rstrip()),
        ("prompt", f"{request.num_prompt_tokens} tokens, {request.num_matched_tokens} reused"),
        ("policy", request.policy),
        ("predicted", _times(request.predicted_ttft_s, request.predicted_tbt_s) + guess),
        ("took", _times(request.actual_ttft_s, request.actual_tbt_s)),
        ("decode", _decoded(request)),
        *((_AHEAD[ahead.what], ahead_text(ahead)) for ahead in request.ahead),
    ]


def weighed(request: ListedRequest, roles: Mapping[NodeId, Role]) -> list[Weighed]:
    """A node that has left since is of an unknown role, unless it was chosen."""
    chosen: dict[NodeId, Role] = {}
    if request.prefill is not None and request.decode is not None:
        chosen = {request.prefill: "prefill", request.decode: "decode"}
    return [
        Weighed(
            node=candidate.node,
            role=chosen[candidate.node]
            if candidate.node in chosen
            else roles.get(candidate.node, "gone"),
            is_chosen=candidate.node in chosen,
            queue_s=candidate.queue_s,
            load_s=candidate.load_s,
            compute_s=candidate.prefill_s,
            total_s=candidate.total_s,
            matched_tokens=candidate.matched_tokens,
            delay_s=candidate.delay_s,
            device_tokens=candidate.device_tokens,
        )
        for candidate in request.candidates
    ]


def ahead_text(ahead: Ahead) -> str:
    """How many blocks, from where, and the first of them by name."""
    where = "" if ahead.node is None else f" from the {ahead.tier} of {ahead.node}"
    names = ", ".join(each.hex()[:8] for each in ahead.hashes)
    more = ", ..." if ahead.num_blocks > len(ahead.hashes) else ""
    return f"{format_count(ahead.num_blocks, 'block')}{where}: {names}{more}"


def find(requests: Sequence[ListedRequest], request_id: str | None) -> ListedRequest:
    """By id, or the beginning of one, or the newest. Raises NotFound, and Rejected where several begin like that."""
    if request_id is None:
        if not requests:
            raise NotFound("no request yet; send one: mcctl request send --prompt hi")
        return requests[0]
    found = [request for request in requests if request.request_id.startswith(request_id)]
    exact = [request for request in found if request.request_id == request_id]
    if not found:
        raise NotFound(
            f"no recent request {request_id}; mcctl request list shows those that the master keeps"
        )
    if len(found) > 1 and not exact:
        raise Rejected(f"{len(found)} recent requests begin with {request_id}; write more of it")
    return (exact or found)[0]


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


def _ran_on(request: ListedRequest) -> str:
    return f"{request.prefill} > {request.decode}" if request.prefill is not None else "-"


def _predicted(request: ListedRequest) -> str:
    return f"{_seconds(request.predicted_ttft_s)}{' (guess)' if request.is_guess else ''}"


def _times(ttft_s: float | None, tbt_s: float | None) -> str:
    if ttft_s is None:
        return "-"
    between = "" if tbt_s is None else f", then {format_duration(tbt_s)} between tokens"
    return f"{format_duration(ttft_s)} to the first token{between}"


def _decoded(request: ListedRequest) -> str:
    if not request.num_decode_steps:
        return "-"
    drafts = f"{request.num_drafted_tokens} tokens guessed, {request.num_accepted_tokens} right"
    return f"{request.num_generated_tokens} tokens, {request.num_decode_steps} steps; {drafts}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_duration(value)
