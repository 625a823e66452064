"""The fault proxy does what its rules say, and nothing else: other tests believe it."""

from __future__ import annotations

import http.client
import socket

import pytest

from support.proxy import FAULTS, Proxy

KEY = "/{bucket}/some/key"


@pytest.fixture
def path(s3_url: str) -> str:
    return KEY.format(bucket=s3_url.split("/")[2])


@pytest.fixture
def wire(proxy: Proxy, path: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=60)


def ask(
    wire: http.client.HTTPConnection, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, bytes]:
    wire.request(method, path, body, headers)  # type: ignore[arg-type]
    with wire.getresponse() as answer:
        return answer.status, answer.read()


def test_bodies_pass_unchanged_on_one_connection_and_are_counted(
    wire: http.client.HTTPConnection, proxy: Proxy, path: str
) -> None:
    body = bytes(range(256)) * 10_000
    assert ask(wire, "PUT", path, body)[0] == 200
    opened = wire.sock
    assert ask(wire, "GET", path) == (200, body)
    assert ask(wire, "HEAD", path) == (200, b"")
    assert ask(wire, "GET", path, Range="bytes=10-19") == (206, body[10:20])
    assert ask(wire, "DELETE", path)[0] == 204
    assert ask(wire, "GET", path)[0] == 404
    assert wire.sock is opened
    seen = [(r.method, r.key, r.bytes_up, r.bytes_down, r.size, r.status) for r in proxy.requests()]
    assert seen[:5] == [
        ("PUT", "some/key", len(body), 0, 0, 200),
        ("GET", "some/key", 0, len(body), 0, 200),
        ("HEAD", "some/key", 0, 0, 0, 200),
        ("GET", "some/key", 0, 10, 10, 206),
        ("DELETE", "some/key", 0, 0, 0, 204),
    ]
    assert seen[5][5] == 404


def test_a_chunked_body_passes_and_is_counted_without_its_framing(
    wire: http.client.HTTPConnection, proxy: Proxy, path: str
) -> None:
    chunks = [b"x" * 10, b"y" * 100_000]
    status, _ = ask(wire, "PUT", path, iter(chunks))
    assert status == 200
    assert proxy.requests()[0].bytes_up == 100_010


def test_a_client_that_expects_100_continue_gets_it(proxy: Proxy, path: str) -> None:
    host, port = proxy.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as wire, wire.makefile("rb") as answers:
        wire.sendall(f"PUT {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n".encode())
        assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert answers.readline() == b"\r\n"
        wire.sendall(b"body")
        assert answers.readline().startswith(b"HTTP/1.1 200")
    assert [(r.status, r.bytes_up) for r in proxy.requests()] == [(200, 4)]


@pytest.mark.parametrize(
    ("fault", "answer", "applied"),
    [
        ("lose", None, True),
        ("reset", None, False),
        ("409", 409, False),
        ("503", 503, False),
        ("503-after", 503, True),
        ("412-after", 412, True),
        ("forbid", 403, False),
        ("answer", 200, False),
        ("delay", 200, True),
        ("duplicate", 412, True),
    ],
)
def test_a_fault_answers_and_applies_as_it_says(
    wire: http.client.HTTPConnection, proxy: Proxy, path: str, fault: str, answer: int | None, applied: bool
) -> None:
    proxy.rule(fault, method="PUT", key="some/", seconds=0.01)
    wire.connect()
    headers = {"If-None-Match": "*"}
    if answer is None:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            ask(wire, "PUT", path, b"body", **headers)
        wire.close()
    else:
        assert ask(wire, "PUT", path, b"body", **headers)[0] == answer
    assert ask(wire, "GET", path) == (200, b"body") if applied else ask(wire, "GET", path)[0] == 404
    assert next((r.status, r.fault) for r in proxy.requests()) == (answer, fault)


def test_rules_match_by_method_key_query_and_count(wire: http.client.HTTPConnection, proxy: Proxy, path: str) -> None:
    proxy.rule("503", method="PUT", key="key", nth=2, times=2)
    proxy.rule("409", query="part")
    statuses = [ask(wire, "PUT", path, b"x")[0] for _ in range(5)]
    assert statuses == [200, 503, 503, 200, 200]
    assert ask(wire, "GET", path + "?partNumber=1")[0] == 409
    assert ask(wire, "GET", path)[0] == 200
    proxy.reset()
    assert proxy.requests() == []
    with pytest.raises(ValueError, match="no faults"):
        proxy.rule("looze")


def test_random_faults_are_the_same_for_the_same_seed(
    wire: http.client.HTTPConnection, proxy: Proxy, path: str
) -> None:
    def statuses(seed: int) -> list[int]:
        proxy.reset()
        proxy.rule("503", "409", times=None, probability=0.5, seed=seed)
        return [ask(wire, "PUT", path, b"x")[0] for _ in range(40)]

    first = statuses(1)
    assert set(first) == {200, 409, 503}
    assert statuses(1) == first
    assert statuses(2) != first


def test_every_fault_is_explained() -> None:
    assert all(FAULTS.values())
