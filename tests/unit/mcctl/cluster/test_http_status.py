"""Health checks of a local cluster."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mcctl.cluster.http_status import get_status


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_status_is_asked_without_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            assert get_status(f"{url}/health", timeout_s=5) == 200
            assert get_status(f"{url}/other", timeout_s=5) == 404
        finally:
            server.shutdown()
            thread.join()
    assert get_status(url, timeout_s=1) is None
