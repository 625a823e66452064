"""A process that writes with a buffered writer from several threads, and tells what is acknowledged, until killed."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection

import pyarrow as pa

import dolmen
from dolmen.api.writer import BufferedWriter

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("request", pa.string())])
THREADS, ROWS = 4, 20


def write_until_killed(url: str, requests: list[int], sender: Connection) -> None:
    """Appends the rows of each request, and sends the number of each that is acknowledged; None when all are."""
    table, lock = dolmen.open(url).table("rows"), threading.Lock()

    def work(mine: list[int], writer: BufferedWriter) -> None:
        for number in mine:
            ids = range(number * ROWS, (number + 1) * ROWS)
            rows = pa.table({"id": ids, "request": [f"r{number}"] * ROWS}, schema=SCHEMA)
            writer.append(rows, request=f"r{number}").result(120)
            with lock:
                sender.send(number)

    with table.writer(max_seconds=0.05) as writer:
        shares = [requests[thread::THREADS] for thread in range(THREADS)]
        threads = [threading.Thread(target=work, args=(share, writer)) for share in shares]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sender.send(None)
