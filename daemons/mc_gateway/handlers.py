"""Paths of the gateway, and OpenAI-shaped errors for whatever matches none."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from daemons.mc_gateway.api_error import ApiError
from daemons.mc_gateway.api_reply import ListedModel, ListedNamespaces, ModelList, now_unix
from daemons.mc_gateway.generation import (
    Gateway,
    GenerationEndpoint,
    prepare_chat,
    prepare_completion,
)
from daemons.mc_gateway.outbound import error_response
from daemons.protocol.node import ModelDescription

PAGE: Final = "/status"


def build_asgi(gateway: Gateway, more: Sequence[BaseRoute] = ()) -> Starlette:
    """The application; holds no state of its own."""
    chat = GenerationEndpoint(gateway, "chat", prepare_chat)
    completion = GenerationEndpoint(gateway, "completions", prepare_completion)
    reads = Reads(gateway)
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completion, methods=["POST"]),
        Route("/v1/models", reads.models),
        Route("/v1/models/{name:path}", reads.model),
        Route("/health", reads.health),
        Route("/metrics", reads.metrics),
        *more,
    ]
    has_page = any(isinstance(route, Route) and route.path == PAGE for route in more)
    return Starlette(
        routes=[Route("/", reads.page if has_page else reads.health), *routes],
        exception_handlers={
            HTTPException: _on_http_error,
            ApiError: _on_api_error,
            Exception: _on_bug,
        },
    )


class Reads:
    """The endpoints that change nothing."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._since = now_unix()

    async def models(self, request: Request) -> Response:
        self._gateway.front.check(request.scope)
        served = [self._listed(model) for model in self._gateway.catalog.served()]
        return _json(ModelList(data=served))

    async def model(self, request: Request) -> Response:
        self._gateway.front.check(request.scope)
        model = await self._gateway.catalog.find(request.path_params["name"])
        return _json(self._listed(model.description))

    async def page(self, _: Request) -> Response:
        """For whoever has only the address."""
        return RedirectResponse(PAGE, status_code=303)

    async def health(self, request: Request) -> Response:
        """Needs no key, so to strangers it tells neither models nor addresses."""
        sickness = self._gateway.catalog.sickness()
        status = "ok" if sickness is None else "unavailable"
        more: dict[str, object] = {}
        if self._gateway.front.shows_metrics(request.scope):
            served = [model.name for model in self._gateway.catalog.served()]
            more = {"models": served} if sickness is None else {"reason": sickness}
        return _json({"status": status} | more, status=200 if sickness is None else 503)

    async def metrics(self, request: Request) -> Response:
        if not self._gateway.front.shows_metrics(request.scope):
            raise ApiError(403, "metrics are for this gateway's own host; see tenants.open_metrics")
        return Response(
            generate_latest(self._gateway.metrics.registry),
            headers={"content-type": CONTENT_TYPE_LATEST},
        )

    def _listed(self, model: ModelDescription) -> ListedModel:
        others = self._gateway.catalog.others.get(model.name, [])
        return ListedModel(
            id=model.name,
            created=self._since,
            max_model_len=model.max_context_tokens,
            mooncake=ListedNamespaces(
                namespace=model.namespace.hex(), others=[other.namespace.hex() for other in others]
            ),
        )


def _json(value: object, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it"
    says: dict[int, Callable[[], str]] = {
        404: lambda: (
            f"no such path: {request.url.path}; "
            "see /v1/models, /v1/chat/completions, /v1/completions"
        ),
        405: lambda: f"{request.method} is not allowed on {request.url.path}",
    }
    message = says.get(error.status_code, lambda: str(error.detail))()
    response = error_response(ApiError(error.status_code, message))
    response.headers.update(error.headers or {})
    return response


def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), "registered for it"
    return error_response(error)


def _on_bug(_: Request, __: Exception) -> Response:
    """The server logs the traceback; the client never sees it."""
    return error_response(ApiError(500, "internal error; see the gateway's log"))
