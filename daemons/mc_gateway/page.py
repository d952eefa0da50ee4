"""The status page: files of this package and one JSON document, read only, for whom /metrics is for.

The policy in its headers lets it load nothing from elsewhere and run nothing that is not in its own files; page.js
puts what comes from the cluster into text nodes alone.
"""

from pathlib import Path
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from daemons.core.errors import McError
from daemons.mc_gateway.api_error import ApiError
from daemons.mc_gateway.board import Board
from daemons.mc_gateway.catalog import Catalog
from daemons.mc_gateway.page_view import shown
from daemons.mc_gateway.visit import Front

_FILES: Final = Path(__file__).parent / "status_page"
_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class StatusPage:
    """Its files are read once, when it is made."""

    def __init__(self, board: Board, catalog: Catalog, front: Front) -> None:
        self._board = board
        self._catalog = catalog
        self._front = front
        self._files = {name: (_FILES / name).read_bytes() for name in _TYPES}

    def routes(self) -> list[Route]:
        return [
            Route("/status", self.index),
            Route("/status/data.json", self.data),
            Route("/status/{name}", self.file),
        ]

    async def index(self, request: Request) -> Response:
        self._check(request)
        return self._file("index.html")

    async def file(self, request: Request) -> Response:
        self._check(request)
        name = request.path_params["name"]
        if name not in self._files:
            raise ApiError(404, f"no such path: {request.url.path}; the page is /status")
        return self._file(name)

    async def data(self, request: Request) -> Response:
        self._check(request)
        try:
            look = await self._board.look()
        except McError as error:
            raise ApiError(503, f"the master does not answer: {error.message}") from error
        document = shown(self._front.gateway, self._catalog.sickness(), look, self._board.hits())
        return Response(
            msgspec.json.encode(document), media_type="application/json", headers=HEADERS
        )

    def _check(self, request: Request) -> None:
        if not self._front.shows_metrics(request.scope):
            raise ApiError(
                403, "the status page is for this gateway's own host; see tenants.open_metrics"
            )

    def _file(self, name: str) -> Response:
        return Response(self._files[name], media_type=_TYPES[name], headers=HEADERS)
