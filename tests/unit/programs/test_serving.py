"""A program that cannot reach its server says so in a sentence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from serving import serving

from sgl_compiled.server import free_port


class Answer(BaseHTTPRequestHandler):
    status = 405

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(params=[405, 404])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    handler = type("Answer", (Answer,), {"status": request.param})
    found = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{found.server_port}", request.param
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "http://[", "closed"])
def test_nobody_answers(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}" if url == "closed" else url
    with pytest.raises(SystemExit, match="1"), serving(None, url):
        pass
    assert "No server answers at" in capsys.readouterr().out


def test_a_server_with_and_without_the_plugin(server: tuple[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    url, status = server
    if status == 405:
        with serving(None, url) as address:
            assert address == url
        return
    with pytest.raises(SystemExit, match="1"), serving(None, url):
        pass
    assert "without the plugin" in capsys.readouterr().out
