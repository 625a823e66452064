"""The page about a database's health, as the local pipeline serves it to browsers of this machine alone."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import dolmen
from dolmen.base.runtime import Runtime
from dolmen.errors import InputError, StoreUnavailableError
from dolmen.service.local.page_server import PageServer
from dolmen.service.local.pipeline import LocalHealthPage, LocalLayout

SCHEMA = pa.schema([("k", pa.int64())])


@pytest.fixture
def layout(tmp_path: Path) -> LocalLayout:
    layout = LocalLayout.under(tmp_path)
    layout.make()
    dolmen.open(layout.database).create_table("flights", SCHEMA)
    return layout


@pytest.fixture
def server(layout: LocalLayout) -> Iterator[PageServer]:
    runtime = Runtime()
    with PageServer(LocalHealthPage(layout, runtime).draw, 0, runtime) as server:
        yield server


def port_of(server: PageServer) -> int:
    return int(server.address.rstrip("/").rpartition(":")[2])


def ask(
    server: PageServer, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, body


def test_each_request_shows_the_database_of_now(server: PageServer, layout: LocalLayout) -> None:
    status, headers, page = ask(server)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "flights" in page
    assert "Look again" in page
    dolmen.open(layout.database).create_table("trains", SCHEMA)
    (layout.rejected / "flights").mkdir()
    (layout.rejected / "flights" / "a.csv.error.json").write_text("{}")
    (layout.dead_letters / "ingest-1.json").write_text("{}")
    page = ask(server)[2]
    assert "trains" in page
    assert "1 reject waits" in page
    assert "1 message of drops was given up" in page


def test_headers_keep_the_page_to_itself(server: PageServer) -> None:
    headers = ask(server)[1]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Access-Control-Allow-Origin"] is None
    assert headers["Server"] == "dolmen"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "localhost:1", "evil.example:{port}", "", "[::1]:{port}"]
)
def test_another_host_is_refused(server: PageServer, host: str) -> None:
    status, _, body = ask(server, Host=host.format(port=port_of(server)))
    assert status == 403
    assert "flights" not in body


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:{port}"])
def test_its_own_names_are_answered(server: PageServer, host: str) -> None:
    assert ask(server, Host=host.format(port=port_of(server)))[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/0.9\r\n\r\n",
    ],
    ids=["no host", "two hosts", "old"],
)
def test_a_request_without_one_host_gets_no_page(server: PageServer, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=60) as connection:
        connection.sendall(head % port_of(server) if b"%d" in head else head)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    assert b"flights" not in answer


@pytest.mark.parametrize("path", ["/other", "/?", "/../state/lock", "/%2e%2e"])
def test_there_is_one_page(server: PageServer, path: str) -> None:
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "X"])
def test_nothing_can_be_written(server: PageServer, layout: LocalLayout, method: str) -> None:
    before = dolmen.open(layout.database).refresh()
    assert ask(server, method=method)[0] == 501
    assert dolmen.open(layout.database).refresh() == before


@pytest.mark.slow
def test_browsers_that_open_connections_and_say_nothing_stop_nobody(server: PageServer) -> None:
    silent: list[socket.socket] = []
    for count in (4, 30, 100):
        silent += [socket.create_connection(("127.0.0.1", port_of(server)), timeout=60) for _ in range(count)]
        for connection in silent[::3]:
            with suppress(OSError):  # closed by the server, in favour of others
                connection.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert ask(server)[0] == 200
    for connection in silent:
        connection.close()
    assert ask(server)[0] == 200


def test_a_database_that_cannot_be_read_says_so_and_can_be_asked_again() -> None:
    answers = iter([StoreUnavailableError("no answer <b>"), OSError(5, "broken"), "page"])

    def draw() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with PageServer(draw, 0, Runtime()) as server:
        status, headers, body = ask(server)
        assert (status, headers["Content-Type"]) == (503, "text/plain; charset=utf-8")
        assert "StoreUnavailableError: no answer <b>" in body
        assert ask(server)[0] == 503
        assert ask(server)[::2] == (200, "page")


def test_a_port_that_is_taken_or_none_is_refused(server: PageServer) -> None:
    with pytest.raises(InputError, match="port"):
        PageServer(lambda: "", port_of(server), Runtime())
    for wrong in ("80", 8.0, True):
        with pytest.raises(InputError, match="port"):
            PageServer(lambda: "", wrong, Runtime())  # type: ignore[arg-type]
    for port in (-1, 65_536):
        with pytest.raises(InputError, match="1 to 65535"):
            PageServer(lambda: "", port, Runtime())


@pytest.mark.slow
def test_dolmen_local_says_the_address_and_serves_until_it_ends(tmp_path: Path) -> None:
    command = ["local", "--root", str(tmp_path / "local"), "--json", "--compact-every", "0", "--gc-every", "0"]
    source = f"import sys; from dolmen.cli import main; sys.argv[1:] = {command!r}; main()"
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's & lets it be ignored
    ) as running:
        assert running.stdout
        said = json.loads(running.stdout.readline())
        assert (said["function"], said["event"]) == ("report", "serving")
        host, _, port = said["address"].removeprefix("http://").rstrip("/").partition(":")
        assert host == "127.0.0.1"
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("GET", "/")
        assert "Nothing was ever committed here" in connection.getresponse().read().decode()
        try:
            for _ in range(6):  # Python loses an interrupt that comes in a finalizer: then people press Ctrl-C again
                running.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    running.wait(timeout=20)
                    break
            assert running.returncode == 130
        finally:
            running.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5)


@pytest.mark.slow
def test_dolmen_local_serves_no_page_once_or_when_it_is_not_wanted(tmp_path: Path) -> None:
    command = ["local", "--root", str(tmp_path / "local"), "--once", "--json"]
    source = f"import sys; from dolmen.cli import main; sys.argv[1:] = {command!r}; main()"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == ""
