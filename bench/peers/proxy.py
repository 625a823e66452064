"""A proxy in front of an S3 server that counts requests and bytes, and is as slow as S3 if asked to be.

``python -m bench.peers.proxy http://host:port SECONDS BYTES_PER_SECOND`` prints its port, and lives until its standard
input ends. Each answer's first byte comes after SECONDS at the earliest, each connection carries that many bytes a
second (0: as many as it can). ``GET /.meter`` is answered by the proxy itself: its counts so far, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

BLOCK = 256 << 10
_GONE = (ConnectionError, asyncio.IncompleteReadError)
Headers = dict[str, str]


class Pace:
    """Lets no more than some bytes a second through a connection.

    Args:
        rate: bytes a second; 0: as many as there are.
    """

    def __init__(self, rate: float) -> None:
        self._rate, self._free = rate, 0.0

    async def wait(self, count: int) -> None:
        """Waits until these bytes may have passed."""
        if not self._rate:
            return
        now = time.monotonic()
        self._free = max(now, self._free) + count / self._rate
        if (rest := self._free - now) > 0.001:
            await asyncio.sleep(rest)


class CountingProxy:
    """One coroutine for each connection of a client, each with its own connection to the server.

    Args:
        host, port: of the server.
        seconds: the time from the end of a request to the first byte of its answer, at least.
        rate: bytes a second on each connection; 0: as many as there are.
    """

    def __init__(self, host: str, port: int, seconds: float, rate: float) -> None:
        self._host, self._port, self._seconds, self._rate = host, port, seconds, rate
        self.counts: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until either side leaves."""
        behind: asyncio.StreamWriter | None = None
        try:
            answers, behind = await asyncio.open_connection(self._host, self._port, limit=BLOCK)
            pace = Pace(self._rate)
            while await self._exchange(reader, writer, answers, behind, pace):
                pass
        except _GONE:
            pass
        finally:
            writer.close()
            if behind is not None:
                behind.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        behind: asyncio.StreamWriter,
        pace: Pace,
    ) -> bool:
        """Passes a request and its answer on; tells whether the connection lives."""
        head, headers = await _head(reader)
        method, target = head.split(b" ", 2)[:2]
        if target == b"/.meter":
            body = json.dumps(self.counts).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            return True
        kind = method.decode()
        if kind == "GET" and (b"list-type=" in target or target.split(b"?")[0].count(b"/") < 2):
            kind = "LIST"
        self.counts[kind] += 1
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
            head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))
        behind.write(head)
        sent_bytes = await _pass_body(reader, behind, headers, pace)  # awaited first: others count meanwhile
        self.counts["bytes_up"] += sent_bytes
        sent = time.monotonic()
        head, headers = await _head(answers)
        while head.split(b" ", 2)[1] == b"100":
            head, headers = await _head(answers)
        if (rest := self._seconds - (time.monotonic() - sent)) > 0:
            await asyncio.sleep(rest)
        writer.write(head)
        if method != b"HEAD" and head.split(b" ", 2)[1] not in (b"204", b"304"):
            received_bytes = await _pass_body(answers, writer, headers, pace)
            self.counts["bytes_down"] += received_bytes
        await writer.drain()
        return headers.get("connection", "").lower() != "close"


async def _head(reader: asyncio.StreamReader) -> tuple[bytes, Headers]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return head, {name.lower(): value.strip() for name, value in pairs}


async def _pass_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: Headers, pace: Pace) -> int:
    """Passes a body on in whichever framing it has; returns its bytes."""
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await _pass_bytes(reader, writer, int(headers.get("content-length", 0)), pace)
    total = 0
    while True:
        line = await reader.readuntil(b"\r\n")
        writer.write(line)
        length = int(line.split(b";")[0], 16)
        total += await _pass_bytes(reader, writer, length, pace)
        writer.write(await reader.readuntil(b"\r\n"))
        if not length:
            await writer.drain()
            return total


async def _pass_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int, pace: Pace) -> int:
    left = count
    while left:
        block = await reader.read(min(left, BLOCK))
        if not block:
            raise ConnectionError
        left -= len(block)
        await pace.wait(len(block))
        writer.write(block)
        await writer.drain()
    return count


async def _main(upstream: str, seconds: float, rate: float) -> None:
    parts = urlsplit(upstream)
    assert parts.hostname
    assert parts.port
    proxy = CountingProxy(parts.hostname, parts.port, seconds, rate)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=BLOCK)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


def _leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    asyncio.run(_main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
