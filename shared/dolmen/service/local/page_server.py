"""Serves the page about a database's health to browsers of this machine: one address, GET only.

Each request reads the database again. Pages of other sites cannot read it: requests whose ``Host`` is not an address
of this machine are refused, as a site that points its name at 127.0.0.1 sends them (DNS rebinding).

The page about the health of a local pipeline: its database, its rejects and its dead letters.
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

from dolmen.api.database import Database
from dolmen.base import arguments
from dolmen.base.runtime import Runtime
from dolmen.errors import Error, InputError
from dolmen.ingest.pipeline_health import look_at_queue, look_at_rejects
from dolmen.maintenance.health.health import Pipeline, QueuePlace
from dolmen.maintenance.health.page import POLICY, draw_page
from dolmen.service.local.layout import LocalLayout
from dolmen.store import open_store

HOST = "127.0.0.1"
"""The only address that is listened on."""


_NAMES = (HOST, "localhost")


_HTTP_PORT = 80


_WAIT_SECONDS = 10


_MOST_CONNECTIONS = 8
"""With more, the one that has waited longest for its request is closed: browsers open some that they never use."""


class PageServer:
    """A server of one page.

    Args:
        draw: makes the page.
        port: 0 = any that is free.

    Raises:
        InputError: the port is taken, or is none.
    """

    def __init__(self, draw: Callable[[], str], port: int, runtime: Runtime) -> None:
        if not 0 <= arguments.number("port", port) <= 65_535:
            raise InputError(f"port {port}: give one from 1 to 65535, or 0 for any that is free")
        try:
            self._server = _Server(port, draw, runtime)
        except OSError as error:
            raise InputError(
                f"port {port} cannot be listened on ({error.strerror}): give another one, or 0 for any that is free"
            ) from None
        self._runtime = runtime

    @property
    def address(self) -> str:
        """The page's URL."""
        return f"http://{HOST}:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        self._runtime.start(self._server.serve_forever, "dolmen-page")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, HTTPServer):
    allow_reuse_address = True

    def __init__(self, port: int, draw: Callable[[], str], runtime: Runtime) -> None:
        self.draw, self._runtime = draw, runtime
        self.one_at_a_time = threading.Lock()
        self._connections = threading.Lock()
        self._open = 0
        self._idle: dict[socket.socket, None] = {}  # without a request so far, the oldest first
        super().__init__((HOST, port), _Handler)

    @property
    def hosts(self) -> set[str]:
        """The values that ``Host`` may have."""
        port = self.server_address[1]
        return {f"{name}:{port}" for name in _NAMES} | (set(_NAMES) if port == _HTTP_PORT else set())

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handles a request in a thread of its own, as browsers open connections that they do not use at once."""
        with self._connections:
            is_full = self._open >= _MOST_CONNECTIONS
            oldest = next(iter(self._idle), None) if is_full else None
            if oldest is not None:
                del self._idle[oldest]
                with suppress(OSError):  # its client has gone
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread ends, and counts it no more
            accepted = oldest is not None or not is_full
            if accepted:
                self._open += 1
                self._idle[request] = None
        if accepted:
            self._runtime.start(partial(self._process, request, client_address), "dolmen-page")
        else:
            self.shutdown_request(request)

    def begin_request(self, connection: socket.socket) -> None:
        """Notes that a connection has sent its request: it is answered, however many others come."""
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
        """Says nothing of a browser that has gone away; anything else is a bug, and is shown as one."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _WAIT_SECONDS

    def do_GET(self) -> None:
        self.server.begin_request(self.connection)
        if not self._is_for_this_machine():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "This server answers under its own address only.\n")
        elif self.path != "/":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is one page here: /\n")
        else:
            try:
                with self.server.one_at_a_time:
                    page = self.server.draw()
            except (Error, OSError) as error:
                told = f"The database could not be looked at: {type(error).__name__}: {error}\n"
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", told)
            else:
                self._answer(HTTPStatus.OK, "text/html", page)

    def _is_for_this_machine(self) -> bool:
        hosts = self.headers.get_all("Host", [])
        return len(hosts) == 1 and hosts[0].lower() in self.server.hosts

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
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
        """Tells no version."""
        return "dolmen"

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: the terminal shows what the pipeline does."""


class LocalHealthPage:
    """Looks at a pipeline's database and directories, and draws the page. What does not change is read once.

    Args:
        layout: its directories.
    """

    def __init__(self, layout: LocalLayout, runtime: Runtime) -> None:
        self._layout, self._runtime = layout, runtime
        self._database = Database(open_store(layout.database, runtime), runtime)

    def draw(self) -> str:
        """The current page. Raises CorruptionError, StoreUnavailableError and others, as ``Database.health``."""
        return draw_page(self._database.health(self._pipeline()), link_to_itself=True)

    def _pipeline(self) -> Pipeline:
        layout, runtime = self._layout, self._runtime
        deletes = look_at_queue("delete requests", str(layout.queue), runtime)
        return Pipeline(look_at_rejects(str(layout.rejected), runtime), (self._drops(), deletes))

    def _drops(self) -> QueuePlace:
        """Files of the landing directory are no messages: only those that were given up are counted."""
        layout = self._layout
        try:
            dead = sum(1 for _ in layout.dead_letters.glob("ingest-*.json"))
        except OSError as error:
            return QueuePlace("drops", str(layout.landing), problem=f"{type(error).__name__}: {error}")
        return QueuePlace("drops", str(layout.landing), dead=dead, dead_letters=str(layout.dead_letters))
