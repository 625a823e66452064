"""The process behind ``support.proxy``: an asyncio proxy and its admin endpoint.

``python -m support.proxy_process http://host:port`` prints two ports, the proxy's and the admin's, and lives until its
standard input ends, which is when the test process does, however it ends.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from support.proxy import Request, Rule

HELD_SECONDS = 120.0
BLOCK = 64 << 10

Blocks: TypeAlias = AsyncIterator[tuple[bytes, int]]  # bytes on the wire, and how many of them are the body's


REFUSALS = {
    "409": (409, "ConditionalRequestConflict"),
    "503": (503, "SlowDown"),
    "503-after": (503, "SlowDown"),
    "412-after": (412, "PreconditionFailed"),
}


class GoneError(Exception):
    """The peer closed the connection."""


Headers = list[tuple[str, str]]


@dataclass
class Head:
    """A start line and headers, as bytes on the wire and parsed."""

    start: str
    headers: Headers

    def get(self, name: str) -> str | None:
        return next((value for found, value in self.headers if found.lower() == name), None)

    def encode(self, *without: str) -> bytes:
        lines = [self.start, *(f"{name}: {value}" for name, value in self.headers if name.lower() not in without)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head:
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise GoneError from error
    start, *lines = text.rstrip("\r\n").split("\r\n")
    return Head(start, [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)])


async def blocks(reader: asyncio.StreamReader, head: Head, *, until_close: bool) -> Blocks:
    """A body's bytes as (wire bytes, payload length), whatever its framing."""
    try:
        if (head.get("transfer-encoding") or "").lower() == "chunked":
            while True:
                line = await reader.readuntil(b"\r\n")
                length = int(line.split(b";")[0], 16)
                if length == 0:
                    trailer = b""
                    while (trailing := await reader.readuntil(b"\r\n")) != b"\r\n":
                        trailer += trailing
                    yield line + trailer + b"\r\n", 0
                    return
                yield line + await reader.readexactly(length + 2), length
        left = int(head.get("content-length") or (1 << 60 if until_close else 0))
        while left:
            if not (block := await reader.read(min(left, BLOCK))):
                if until_close and head.get("content-length") is None:
                    return
                raise GoneError
            left -= len(block)
            yield block, len(block)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise GoneError from error


class Server:
    """The proxy: one coroutine a client connection, each with its own connection upstream."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname, upstream
        assert parts.port, upstream
        self.host, self.port = parts.hostname, parts.port
        self.requests: list[Request] = []
        self.rules: list[Rule] = []
        self.released = asyncio.Event()
        self.landing = asyncio.Event()
        self.background: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self.host, self.port)
        try:
            while await self._one(reader, writer, link):
                pass
        except (GoneError, ConnectionError):
            pass
        finally:
            link.close()
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link) -> bool:
        """Serves one request; tells whether the connection goes on."""
        head = await read_head(reader)
        method, target, _ = head.start.split(" ", 2)
        path, _, query = target.partition("?")
        condition = next((f"{n}: {v}" for n, v in head.headers if n.lower() in ("if-match", "if-none-match")), None)
        request = Request(method, unquote(path.lstrip("/").partition("/")[2]), query, head.get("range"), condition)
        self.requests.append(request)
        drawn = next(((rule, fault) for rule in self.rules if (fault := rule.draw(request))), None)
        if (head.get("expect") or "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
        body = blocks(reader, head, until_close=False)
        if drawn is not None:
            rule, request.fault = drawn
        ignored = (request.fault or "").removeprefix("ignore ")
        outgoing = head.encode("expect", ignored)
        if drawn is None or request.fault == "cut" or ignored != (request.fault or ""):
            return await self._pass(request, link, outgoing, body, writer)
        sent = [outgoing]
        async for block, length in body:
            sent.append(block)
            request.bytes_up += length
        return await self._break(request, rule, link, b"".join(sent), reader, writer)

    async def _pass(
        self, request: Request, link: Link, outgoing: bytes, body: Blocks, writer: asyncio.StreamWriter
    ) -> bool:
        await link.send(outgoing, fresh=True)
        async for block, length in body:
            request.bytes_up += length
            await link.send(block)
        return await self._answer(request, link, writer)

    async def _answer(self, request: Request, link: Link, writer: asyncio.StreamWriter) -> bool:
        """Gives the upstream's answer as it comes. What is recorded is recorded before the client has it."""
        head, body = await link.receive(request.method)
        request.status = int(head.start.split(" ")[1])
        writer.write(head.encode())
        limit = None
        if request.fault == "cut":
            limit = int(head.get("content-length") or 0) // 2
        async for block, length in body:
            if limit is not None and request.bytes_down + length > limit:
                writer.write(block[: limit - request.bytes_down])
                request.bytes_down = limit
                await writer.drain()
                return False
            request.bytes_down += length
            writer.write(block)
            await writer.drain()
        await writer.drain()
        return (head.get("connection") or "").lower() != "close" and limit is None

    async def _break(
        self,
        request: Request,
        rule: Rule,
        link: Link,
        whole: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        fault = request.fault or ""
        if fault in ("lose", "503-after", "412-after", "timeout-after", "duplicate"):
            await link.exchange(request.method, whole)
        if fault == "delay":
            await asyncio.sleep(rule.seconds)
        if fault in ("delay", "duplicate"):
            await link.send(whole, fresh=True)
            return await self._answer(request, link, writer)
        if fault == "answer":
            return await answer(request, rule.status, rule.body, writer, more=rule.headers)
        if fault in REFUSALS or fault == "forbid":
            status, code = REFUSALS.get(fault, (403, rule.code))
            text = f"<Error><Code>{code}</Code><Message>proxy</Message></Error>"
            return await answer(request, status, text, writer, server=rule.server)
        if fault in ("timeout", "timeout-after"):
            request.held = True
            waits = [asyncio.create_task(reader.read(1)), asyncio.create_task(self.released.wait())]
            _, late = await asyncio.wait(waits, timeout=HELD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in late:
                task.cancel()
        if fault == "late":
            told = self.landing if math.isinf(rule.seconds) else None
            name = "to be told" if told else None
            task = asyncio.create_task(self._later(request.method, whole, rule.seconds, told), name=name)
            self.background.add(task)
            task.add_done_callback(self.background.discard)
        if fault == "reset":
            abrupt: socket.socket = writer.get_extra_info("socket")
            abrupt.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    async def _later(self, method: str, whole: bytes, seconds: float, told: asyncio.Event | None) -> None:
        await (told.wait() if told else asyncio.sleep(seconds))
        link = Link(self.host, self.port)
        try:
            await link.exchange(method, whole)
        finally:
            link.close()

    async def _land(self) -> None:
        """Applies what waits to be told so, and returns when that is done."""
        self.landing.set()
        self.landing = asyncio.Event()
        waiting = [task for task in self.background if task.get_name() == "to be told"]
        await asyncio.gather(*waiting)

    async def administer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        text = b"".join([block async for block, _ in blocks(reader, head, until_close=False)])
        answer: object = None
        match head.start.split(" ")[1].strip("/"):
            case "requests":
                answer = [asdict(request) for request in self.requests]
            case "reset":
                self.requests, self.rules = [], []
                self.released.set()
                self.released = asyncio.Event()
            case "land":
                await self._land()
            case "forget":
                self.requests = []
            case "rule":
                self.rules.append(Rule(**json.loads(text)))
        body = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()


class Link:
    """The connection upstream that belongs to one client connection."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes, *, fresh: bool = False) -> None:
        """Sends bytes; ``fresh`` when they begin a request, which may need a new connection."""
        if fresh and self._streams and (self._streams[0].at_eof() or self._streams[1].is_closing()):
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        self._streams[1].write(data)
        await self._streams[1].drain()

    async def receive(self, method: str) -> tuple[Head, Blocks]:
        """The next final answer's head, and its body to come."""
        assert self._streams is not None
        reader = self._streams[0]
        while (head := await read_head(reader)).start.split(" ")[1] == "100":
            pass
        bodiless = method == "HEAD" or head.start.split(" ")[1] in ("204", "304")
        return head, self._body(reader, Head(head.start, []) if bodiless else head, until_close=not bodiless)

    async def _body(self, reader: asyncio.StreamReader, head: Head, *, until_close: bool) -> Blocks:
        async for block in blocks(reader, head, until_close=until_close):
            yield block
        if (head.get("connection") or "").lower() == "close":
            self.close()

    async def exchange(self, method: str, whole: bytes) -> None:
        """Sends a request and drops its answer."""
        await self.send(whole, fresh=True)
        _, answer = await self.receive(method)
        async for _ in answer:
            pass

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def answer(
    request: Request,
    status: int,
    text: str,
    writer: asyncio.StreamWriter,
    *,
    server: str = "",
    more: Mapping[str, str] = MappingProxyType({}),
) -> bool:
    """Answers in the server's place."""
    body = text.encode()
    request.status, request.bytes_down = status, len(body)
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    headers = [("Date", date), ("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
    headers += [("Server", server)] if server else []
    headers += more.items()
    writer.write(Head(f"HTTP/1.1 {status} Answered", headers).encode() + (b"" if request.method == "HEAD" else body))
    await writer.drain()
    return True


async def main(upstream: str) -> None:
    server = Server(upstream)
    listeners = [
        await asyncio.start_server(handler, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
        for handler in (server.serve, server.administer)
    ]
    loop = asyncio.get_running_loop()
    parent_gone = asyncio.Event()

    def watch() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(parent_gone.set)

    threading.Thread(target=watch, daemon=True).start()
    print(*(listener.sockets[0].getsockname()[1] for listener in listeners), flush=True)
    await parent_gone.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
