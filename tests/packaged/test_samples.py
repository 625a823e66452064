"""Every sample in ``events/`` runs verbatim through its packaged function, under the Runtime Interface Emulator.

Each invocation is the first one of a new process, and then the second of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dolmen import Database
from support.history import ids, newest, operations
from support.rie import Start
from support.samples import EVENT_ROWS, INGESTED, LEFT, SCHEDULED, USER_ROWS, sample, sample_files


@pytest.fixture
def _files(ministack: str) -> Iterator[None]:
    with sample_files(ministack):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("name", INGESTED)
def test_a_sample_event_becomes_rows_once(database: Database, start: Start, name: str) -> None:
    ingest = start("ingest")
    for _ in range(2):
        answer = ingest.invoke(sample(name))
        assert (answer.error, answer.payload) == (None, {"batchItemFailures": []})
        assert ids(database) == INGESTED[name]
    assert operations(database) == (["ingest"] if INGESTED[name] else [])


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT)
def test_a_sample_of_deletes_is_applied_once(database: Database, start: Start, name: str) -> None:
    database.table("events").append([{"id": i, "user_id": u, "kind": k} for i, u, k in EVENT_ROWS])
    database.table("users").append([{"id": i, "user_id": u} for i, u in USER_ROWS])
    delete = start("delete")
    for _ in range(2):
        answer = delete.invoke(sample(name))
        assert (answer.error, answer.payload) == (None, {"batchItemFailures": []})
        assert (ids(database), ids(database, "users")) == LEFT[name]
    assert operations(database) == ["append", "append", "delete"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCHEDULED))
def test_a_sample_of_a_schedule_does_a_round(database: Database, start: Start, name: str) -> None:
    for n in range(5):
        database.table("events").append([{"id": n, "user_id": n, "kind": "x"}])
    function = name.partition("-")[0]
    running = start(function)
    for _ in range(2):
        answer = running.invoke(sample(name))
        assert answer.error is None
        assert answer.payload == {"finished": True, "version": newest(database)}
    assert database.table("events").describe()["files"] == (1 if function == "compact" else 5)
    assert ids(database) == [0, 1, 2, 3, 4]
