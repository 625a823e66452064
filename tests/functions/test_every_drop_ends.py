"""Every drop ends: whatever is raised while a file is ingested, it is rejected with the reason, or comes again."""

from __future__ import annotations

import errno
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.errors import AccessDeniedError, CorruptionError, StoreUnavailableError
from dolmen.ingest.drops import drop_ingestion
from dolmen.ingest.formats import formats
from dolmen.ingest.formats.formats import SourceFile
from dolmen.rows.write import conform, data_file, runs
from support.functions import World

POISON = 666
"""An id that stands in the file which is to fail."""

FOR_EVER = [
    pa.ArrowInvalid("of Arrow"),
    pa.ArrowNotImplementedError("of Arrow"),
    pa.ArrowKeyError("of Arrow"),
    OSError("of Arrow's, without a number"),
    ValueError("wrong"),
    OverflowError("too much"),
    ZeroDivisionError("none"),
    RecursionError("too deep"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    AssertionError("never"),
    KeyError("missing"),
    IndexError("beyond"),
    TypeError("of another kind"),
    AttributeError("none"),
    EOFError("too short"),
    zlib.error("no zlib"),
]
"""Repeatable: the file's own."""
FOR_NOW = [
    OSError(errno.EIO, "input/output error"),
    MemoryError("none left"),
    pa.ArrowMemoryError("none left"),
    RuntimeError("can't start new thread"),
    ModuleNotFoundError("not there yet"),
    StoreUnavailableError("slow down"),
    AccessDeniedError("not yours"),
    CorruptionError("data/x", "a bit is flipped"),
]
"""May pass: the machine's, the store's or the database's."""

Hook = Callable[..., Any]


def _poisoned(what: Any) -> bool:
    if isinstance(what, pa.RecordBatch):
        return "id" in what.schema.names and POISON in what.column(what.schema.names.index("id")).to_pylist()
    columns = what.columns if isinstance(what, pa.Table) else what
    return any(POISON in column.to_pylist() for column in columns)


def _reading(raised: Exception) -> tuple[Any, str, Hook]:
    original = drop_ingestion.read

    def read(source: SourceFile, *args: Any, **options: Any) -> pa.RecordBatchReader:
        if "bad" in source.name:
            raise raised
        return original(source, *args, **options)

    return drop_ingestion, "read", read


def _amid_rows(raised: Exception) -> tuple[Any, str, Hook]:
    original = formats._batches

    def batches(*args: Any) -> Iterator[pa.RecordBatch]:
        for batch in original(*args):
            yield batch.slice(0, 1)
            if _poisoned(batch):
                raise raised
            yield batch.slice(1)

    return formats, "_batches", batches


def _conforming(raised: Exception) -> tuple[Any, str, Hook]:
    original = conform.conform_batch

    def conform_batch(batch: pa.RecordBatch, *args: Any, **options: Any) -> pa.RecordBatch:
        if _poisoned(batch):
            raise raised
        return original(batch, *args, **options)

    return conform, "conform_batch", conform_batch


def _preparing(raised: Exception) -> tuple[Any, str, Hook]:
    original = data_file.make_run

    def make_run(columns: list[pa.ChunkedArray], entry: Any) -> Any:
        if _poisoned(columns):
            raise raised
        return original(columns, entry)

    return data_file, "make_run", make_run


def _writing(raised: Exception) -> tuple[Any, str, Hook]:
    original = runs.encode

    def encode(write: Any, entry: Any, plan: Any, run: Any) -> Any:
        if _poisoned(run.table):
            raise raised
        return original(write, entry, plan, run)

    return runs, "encode", encode


STAGES = [_reading, _amid_rows, _conforming, _preparing, _writing]
_COLUMNS = {"id": [1, POISON], "user_id": [7, 8], "kind": ["a", "b"]}


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(_COLUMNS), sink)
    return sink.getvalue()


def _arrow() -> bytes:
    sink = io.BytesIO()
    table = pa.table(_COLUMNS)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


FILES = {
    "bad.csv": b"id,user_id,kind\n1,7,a\n666,8,b\n",
    "bad.jsonl": b'{"id": 1, "kind": "a"}\n{"id": 666, "kind": "b"}\n',
    "bad.parquet": _parquet(),
    "bad.arrow": _arrow(),
}


def _names(error: Exception) -> str:
    return type(error).__name__


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("stage", STAGES)
def test_what_would_be_raised_again_makes_a_reject(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, stage: Hook
) -> None:
    world.create()
    for number, error in enumerate(FOR_EVER):
        with monkeypatch.context() as patch:
            patch.setattr(*stage(error))
            good = world.drop(f"events/good-{number}.csv", f"id\n{number}\n")
            bad = world.drop(f"events/{number}/{name}", FILES[name])
            assert world.ingest(good, bad) == [], error
        report = world.rejects()[next(key for key in world.rejects() if key.startswith(f"events/{number}/"))]
        if isinstance(error, pa.ArrowException | OSError | UnicodeDecodeError) and stage is not _writing:
            continue  # readers know these, and say more about some of them
        assert type(error).__name__ in report["reason"], error
    assert world.database.table("events").count() == len(FOR_EVER)
    assert len(world.rejects()) == len(FOR_EVER)


@pytest.mark.parametrize("error", FOR_NOW, ids=_names)
@pytest.mark.parametrize("stage", STAGES)
def test_what_may_pass_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, stage: Hook
) -> None:
    world.create()
    good = world.drop("events/good.csv", "id\n1\n")
    bad = world.drop("events/bad.jsonl", FILES["bad.jsonl"])
    with monkeypatch.context() as patch:
        patch.setattr(*stage(error))
        assert world.ingest(good, bad) == ["message-1"]
    assert not world.rejects()
    assert world.database.table("events").count() == 1
    assert world.ingest(good, bad) == []
    assert world.database.table("events").count() == 3


def test_what_passes_at_once_is_ingested(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create()
    original, raised = drop_ingestion.read, []

    def read(*args: Any, **options: Any) -> pa.RecordBatchReader:
        if not raised:
            raised.append(1)
            raise KeyError("only once")
        return original(*args, **options)

    monkeypatch.setattr(drop_ingestion, "read", read)
    assert world.ingest(world.drop("events/a.csv", "id\n1\n")) == []
    assert not world.rejects()
    assert world.database.table("events").count() == 1


def test_an_error_that_nobody_foresaw_is_logged_with_its_place_and_without_its_text(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create()
    monkeypatch.setattr(*_writing(KeyError("Alice Smith")))
    assert world.ingest(world.drop("events/bad.csv", FILES["bad.csv"])) == []
    (heard,) = [record for record in world.listener.entries if record["text"] == "drop rejected"]
    assert heard["error"] == "UnforeseenError"
    assert "test_every_drop_ends" in heard["at"][-1]
    assert "Alice" not in str(world.listener.entries)


def test_inference_that_fails_makes_a_reject_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    world.restart()

    def infer(*args: Any, **options: Any) -> pa.Schema:
        raise OverflowError("too much")

    monkeypatch.setattr("dolmen.ingest.inference.inference.infer_file", infer)
    assert world.ingest(world.drop("new/a.csv", "id\n1\n")) == []
    ((key, report),) = world.rejects().items()
    assert key.startswith("new/a-")
    assert "OverflowError: too much" in report["reason"]


def test_a_file_of_changes_is_rejected_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create()
    world.database.table("events").set(ingest_mode="cdc", cdc_envelope="dms", cdc_sequence="user_id")

    def ingest_changes(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError("none")

    monkeypatch.setattr("dolmen.ingest.cdc.apply_changes.ingest_changes", ingest_changes)
    assert world.ingest(world.drop("events/a.jsonl", "{}\n")) == []
    (report,) = world.rejects().values()
    assert "ZeroDivisionError: none" in report["reason"]
