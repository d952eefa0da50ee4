"""mcctl request list, show: what became of recent requests."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from daemons.client.cluster import ClusterClient
from daemons.core.errors import NotFound, Rejected
from daemons.core.units import format_count, format_duration
from daemons.protocol.request_list import Ahead, ListedRequest
from mcctl import render
from mcctl.output_schema import prints
from mcctl.render import Column
from mcctl.settings import settings_of
from mcctl.watching import watchable

_GUESS: Final = "; a guess: the prefill instance had not measured a prompt yet"
_AHEAD: Final = {"staged": "staged ahead", "replicated": "replicated"}
KEPT_REQUESTS: Final = 1000
"""What a master lists at most."""

RequestId = Annotated[
    str | None,
    typer.Argument(
        help="As in `request list`, or its beginning; else the newest.", show_default=False
    ),
]


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
        request = find(client.requests(KEPT_REQUESTS), request_id)
    facts = [
        ("model", request.model),
        *facts_of(request),
        ("ran on", _ran_on(request)),
        ("answer", f"{request.num_generated_tokens} tokens"),
        ("age", format_duration(request.age_s)),
    ]
    if settings.output == "json":
        render.emit_json(request)
    else:
        render.emit_facts(settings.output, facts)


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


def facts_of(request: ListedRequest) -> list[tuple[str, str]]:
    """(name, text): what was asked, predicted and measured."""
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


def ahead_text(ahead: Ahead) -> str:
    """How many blocks, from where, and the first of them by name."""
    where = "" if ahead.node is None else f" from the {ahead.tier} of {ahead.node}"
    names = ", ".join(each.hex()[:8] for each in ahead.hashes)
    more = ", ..." if ahead.num_blocks > len(ahead.hashes) else ""
    return f"{format_count(ahead.num_blocks, 'block')}{where}: {names}{more}"


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
