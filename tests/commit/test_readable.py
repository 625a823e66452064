"""Nothing is committed that a reader refuses: the commit reads what it is about to put."""

from __future__ import annotations

import enum
import uuid
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from dolmen.base.runtime import Runtime
from dolmen.commit.change import Change
from dolmen.commit.head import Head
from dolmen.commit.statements.background import SetProperties
from dolmen.commit.statements.catalog import CreateTable
from dolmen.errors import CorruptionError, InputError
from dolmen.format.manifest import TableEntry
from dolmen.format.schema import Field, Schema
from dolmen.format.segments import encode_checked
from support.commit_world import SCHEMA, World, append, table


class Word(enum.StrEnum):
    ID = "an id"


@pytest.mark.parametrize("id_", [4711, True, 1.5, ("a",), b"a", uuid.uuid4(), None, "", "\ud800", "x" * 4097])
def test_what_can_be_no_id_is_refused_before_anything_is_sent(world: World, id_: Any) -> None:
    writer = world.writer()
    puts = len(writer.store.puts)
    with pytest.raises(InputError, match="request"):
        writer.commit(append(table(world), "a"), applied={id_: ""})
    assert (len(writer.store.puts), world.newest.version) == (puts, 1)


@pytest.mark.parametrize("id_", ["x", "x" * 4096, "\0", "naïve 🗿", Word.ID])
def test_any_text_of_at_most_4096_bytes_is_an_id(world: World, id_: str) -> None:
    writer = world.writer()
    writer.commit(append(table(world), "a", request=id_), applied={id_: "d"})
    assert writer.commit(append(table(world), "b", request=id_), applied={id_: "d"}).already == {id_: 2}
    seen = Head(world.writer().store, Runtime()).refresh().manifest
    assert [(each.id, type(each.id)) for each in seen.applied] == [(str(id_), str)]


@pytest.mark.parametrize("operation", [7, None, "", "x" * 65, "two\nlines", "\ud800"])
def test_an_operation_is_a_short_word(operation: Any) -> None:
    with pytest.raises(InputError, match="operation"):
        Change(commit_id="c", operation=operation, statements=())


HARMFUL = {
    "a setting of 5,001 digits": SetProperties(None, "", {"retention": 10**5000}),
    "a setting that is no text": SetProperties(None, "", {"retention": "\ud800"}),
    "a table without a name": CreateTable("", TableEntry(uuid="u", epoch=0, schema=SCHEMA)),
    "a table whose id is a number": CreateTable("u", TableEntry(uuid=5, epoch=0, schema=SCHEMA)),  # type: ignore[arg-type]
    "a column without a name": CreateTable(
        "u", TableEntry(uuid="u", epoch=0, schema=Schema((Field(1, None, "int64"),), 2))  # type: ignore[arg-type]
    ),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMFUL.values(), ids=HARMFUL.keys())
def test_a_version_that_no_one_could_read_is_not_committed(world: World, harm: Any) -> None:
    writer = world.writer()
    writer.head.refresh()
    puts = len(writer.store.puts)
    with pytest.raises(InputError, match="committed"):
        writer.commit(harm)
    assert len(writer.store.puts) == puts
    assert Head(world.writer().store, Runtime()).refresh().manifest.version == 1
    writer.commit(append(table(world), "a"))
    assert world.newest.version == 2


def test_a_writer_goes_on_from_what_others_read(world: World) -> None:
    writer = world.writer()
    done = writer.commit(SetProperties(None, "", {"retention": uuid.UUID(int=7)}))
    assert done.manifest is not None
    assert done.manifest.properties == {"retention": str(uuid.UUID(int=7))}
    assert done.manifest == Head(world.writer().store, Runtime()).refresh().manifest


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int8()), pa.struct([("a", pa.list_(pa.string()))]), pa.map_(pa.string(), pa.int8())]
)
def test_a_schema_equals_what_is_read_of_it(kind: pa.DataType) -> None:
    schema = Schema.from_arrow(pa.schema([("a", kind)]))
    assert msgspec.json.decode(msgspec.json.encode(schema), type=Schema) == schema


def test_a_segment_that_would_be_read_otherwise_is_not_made() -> None:
    with pytest.raises(CorruptionError):
        encode_checked("removed", [7], "segment/removed/x")
