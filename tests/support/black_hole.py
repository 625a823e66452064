"""A server that accepts connections and never answers, as a VPC without an endpoint does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class BlackHole:
    """The server; ``requests`` are the first lines of its requests, in order."""

    endpoint: str
    requests: list[str] = field(default_factory=list)


@contextmanager
def black_hole() -> Iterator[BlackHole]:
    """Runs a server on a free local port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hole = BlackHole(f"http://127.0.0.1:{listener.getsockname()[1]}")
        accepted: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # closed: the test is over
                    return
                accepted.append(connection)
                hole.requests.append(connection.recv(65536).partition(b"\r\n")[0].decode())

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield hole
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in accepted:
                connection.close()
