"""A writer that repeats each request under its id until it is acknowledged, as a queue does."""

from __future__ import annotations

from collections import Counter
from multiprocessing.synchronize import Event

import dolmen
from dolmen.errors import RetryableError, UnknownOutcomeError
from support.writers import Connection, rows

TRIES = 200


def repeat_until_acknowledged(url: str, writer: int, enough: Event, acknowledgements: Connection) -> None:
    """Appends, upserts and deletes on keys of its own, one commit each, until ``enough`` is set.

    Sends each acknowledged request as (id, version, expected value of its key: None if deleted), and at the end None
    with the number of errors of each kind.
    """
    troubles: Counter[str] = Counter()
    table = None
    first = writer * 1_000_000
    step = 0
    while not enough.is_set():
        key, request = first + step // 4, f"w{writer}-{step}"
        for _ in range(TRIES):
            try:
                table = table or dolmen.open(url).table("rows")
                match step % 4:  # of every two keys one is deleted in the end
                    case 0:
                        commit = table.append(rows(key, writer=writer, value=step), request=request)
                    case 3 if key % 2:
                        commit = table.delete(keys=[key], request=request)
                    case _:
                        commit = table.upsert(rows(key, writer=writer, value=step), request=request)
            except (UnknownOutcomeError, RetryableError) as error:
                troubles[type(error).__name__] += 1
                continue
            acknowledgements.send((request, commit.version, key, None if step % 4 == 3 and key % 2 else step))
            break
        else:
            raise AssertionError(f"{request} was not acknowledged in {TRIES} tries")
        step += 1
    acknowledgements.send(None)
    acknowledgements.send(troubles)
