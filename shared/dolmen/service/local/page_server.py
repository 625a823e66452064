"""Serves a page about a database's health to browsers of this machine: one address, GET only.

Each request reads the database again. Pages of other sites cannot read it: requests whose ``Host`` is not an address
of this machine are refused, as a site that points its name at 127.0.0.1 sends them (DNS rebinding).
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any, Self

from dolmen.base import arguments
from dolmen.base.runtime import Runtime
from dolmen.errors import Error, InputError
from dolmen.maintenance.health.page import POLICY

HOST = "127.0.0.1"  # the only address on which the server listens

_NAMES = (HOST, "localhost")
_HTTP_PORT = 80
_WAIT_SECONDS = 10
_MOST_CONNECTIONS = 8
"""The most connections without a request. Beyond it the oldest is closed: browsers open some in vain."""


class PageServer(ThreadingMixIn, HTTPServer):
    """A server of one page, which ``draw`` makes. Port 0 is any free one.

    Raises:
        InputError: the port is in use, or is not one.
    """

    allow_reuse_address = True

    def __init__(self, draw: Callable[[], str], port: int, runtime: Runtime) -> None:
        if not 0 <= arguments.number("port", port) <= 65_535:
            raise InputError(f"port {port}: give one from 1 to 65535, or 0 for any free one")
        self.draw, self._runtime = draw, runtime
        self.one_at_a_time = threading.Lock()
        self._connections = threading.Lock()
        self._open = 0
        self._idle: dict[socket.socket, None] = {}  # without a request so far, the oldest first
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            reason = f"the server cannot listen on port {port} ({error.strerror})"
            raise InputError(f"{reason}: give another one, or 0 for any free one") from None

    @property
    def address(self) -> str:
        """The page's URL."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def __enter__(self) -> Self:
        self._runtime.start(self.serve_forever, "dolmen-page")
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def hosts(self) -> set[str]:
        """The values that ``Host`` may have."""
        port = self.server_address[1]
        return {f"{name}:{port}" for name in _NAMES} | (set(_NAMES) if port == _HTTP_PORT else set())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handles a request in a thread of its own, because browsers open connections before they use them."""
        with self._connections:
            is_full = self._open >= _MOST_CONNECTIONS
            oldest = next(iter(self._idle), None) if is_full else None
            if oldest is not None:
                del self._idle[oldest]
                with suppress(OSError):  # its client has gone
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread ends, and no longer counts it
            accepted = oldest is not None or not is_full
            if accepted:
                self._open += 1
                self._idle[request] = None
        if accepted:
            self._runtime.start(partial(self._process, request, client_address), "dolmen-page")
        else:
            self.shutdown_request(request)

    def begin_request(self, connection: socket.socket) -> None:
        """Records that a connection has sent its request, so that it stays open for the answer."""
        with self._connections:
            self._idle.pop(connection, None)

    def _process(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            self.begin_request(request)
            with self._connections:
                self._open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a browser that has gone away; anything else is a bug, and is shown as one."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _WAIT_SECONDS

    def do_GET(self) -> None:
        self.server.begin_request(self.connection)
        if not self._is_for_this_machine():
            self._respond(HTTPStatus.FORBIDDEN, "text/plain", "This server answers under its own address only.\n")
        elif self.path != "/":
            self._respond(HTTPStatus.NOT_FOUND, "text/plain", "There is one page here: /\n")
        else:
            try:
                with self.server.one_at_a_time:
                    page = self.server.draw()
            except (Error, OSError) as error:
                reason = f"The database could not be read: {type(error).__name__}: {error}\n"
                self._respond(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", reason)
            else:
                self._respond(HTTPStatus.OK, "text/html", page)

    def _is_for_this_machine(self) -> bool:
        hosts = self.headers.get_all("Host", [])
        return len(hosts) == 1 and hosts[0].lower() in self.server.hosts

    def _respond(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode(errors="backslashreplace")
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", f"{POLICY}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Hides the version."""
        return "dolmen"

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the terminal shows what the pipeline does."""
