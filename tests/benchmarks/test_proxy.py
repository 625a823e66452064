"""The proxy of the benchmarks: it counts exactly, changes nothing, and is as slow as it is asked to be."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from bench.peers.peer import S3
from bench.peers.servers import proxy

BODY = bytes(range(256)) * 4_000


class Handler(BaseHTTPRequestHandler):
    """Answers GET with BODY, HEAD with its length, and PUT in chunks with what came."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(BODY)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))

    def do_DELETE(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def connection(seconds: float = 0.0, rate: float = 0.0) -> Iterator[http.client.HTTPConnection]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with proxy(S3(f"http://127.0.0.1:{server.server_port}"), seconds, rate) as seen:
        wire = http.client.HTTPConnection(urlsplit(seen.endpoint).netloc, timeout=60)
        try:
            yield wire
        finally:
            wire.close()
            server.shutdown()
            server.server_close()


def answer(wire: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> bytes:
    wire.request(method, path, body)
    return wire.getresponse().read()


def test_it_counts_each_request_by_its_kind_and_the_bytes_of_bodies() -> None:
    with connection() as wire:
        assert answer(wire, "GET", "/bucket/key") == BODY
        assert answer(wire, "HEAD", "/bucket/key") == b""
        assert answer(wire, "PUT", "/bucket/key", BODY[:1_000]) == BODY[:1_000]
        assert answer(wire, "DELETE", "/bucket/key") == b""
        assert answer(wire, "GET", "/bucket?list-type=2&prefix=a%2Fb") == BODY
        counts = {"GET": 1, "HEAD": 1, "PUT": 1, "DELETE": 1, "LIST": 1}
        expected = counts | {"bytes_up": 1_000, "bytes_down": 2 * len(BODY) + 1_000}
        assert json.loads(answer(wire, "GET", "/.meter")) == expected
        assert json.loads(answer(wire, "GET", "/.meter")) == expected, "it does not count itself"


def test_answers_begin_and_bodies_pass_no_sooner_than_they_may() -> None:
    with connection(0.2, 5e6) as wire:
        began = time.monotonic()
        answer(wire, "HEAD", "/bucket/key")
        assert time.monotonic() - began >= 0.2
        began = time.monotonic()
        assert answer(wire, "GET", "/bucket/key") == BODY
        assert time.monotonic() - began >= 0.2 + len(BODY) / 5e6 - 0.06


def test_it_counts_what_passes_on_many_connections_at_once() -> None:
    with connection(rate=1e7) as wire, ThreadPoolExecutor(8) as pool:

        def get(_: int) -> bytes:
            own = http.client.HTTPConnection(wire.host, wire.port, timeout=60)
            return answer(own, "GET", "/bucket/key")

        assert all(body == BODY for body in pool.map(get, range(16)))
        counts = json.loads(answer(wire, "GET", "/.meter"))
        assert (counts["GET"], counts["bytes_down"]) == (16, 16 * len(BODY))
