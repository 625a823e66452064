"""Files whose counts and sizes lie are refused, or read whole: never with fewer rows, and in bounded memory."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

import dolmen
from dolmen.errors import AdoptionError, CorruptionError, InputError
from dolmen.format.parquet_footer import LIST, STRUCT, ThriftStruct, array
from dolmen.ingest.formats.formats import SourceFile, detect, read
from support.lying_counts import KINDS, ROWS

BUDGET_BYTES = 1 << 30
GROUPS, CHUNKS, GROUP_ROWS, META, VALUES = 4, 1, 3, 3, 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_random_lies_lose_no_row_and_kill_no_process(kind: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("DOLMEN_TEST_SEED") or random.SystemRandom().randrange(2**32))
    count = 10_000 if os.environ.get("DOLMEN_LONG") else 400
    command = [sys.executable, "-m", "support.lying_counts", kind, str(seed), str(count), str(tmp_path)]
    tests = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tests)
    assert done.returncode == 0, (seed, (tmp_path / "at").read_text(), done.stderr[-2000:])
    found = json.loads(done.stdout)
    assert found["rows"].keys() == {"None", str(ROWS)}, (seed, found, list(tmp_path.glob("*-t.*")))
    assert found["codes"].keys() <= {"0", "2"}, (seed, found)
    assert found["peak"] < BUDGET_BYTES, (seed, found)


def lying_parquet(table: pa.Table, values: dict[tuple[int, int], int], rows: int | None = None) -> bytes:
    """A file of row groups of 4 rows.

    Args:
        values: by row group and Parquet column, the number of values that the column chunk says it has.
        rows: the rows that the footer says the file has.
    """
    sink = io.BytesIO()
    parquet.write_table(table, sink, row_group_size=4, compression="none", use_dictionary=False)
    data = sink.getvalue()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = ThriftStruct(data[start:-8])
    groups = footer.structs(GROUPS)
    for (group, column), number in values.items():
        own = ThriftStruct(groups[group])
        chunks = own.structs(CHUNKS)
        chunk = ThriftStruct(chunks[column])
        meta = ThriftStruct(chunk.fields[META][1])
        meta.set_number(VALUES, number)
        chunk.fields[META] = STRUCT, meta.encode()
        chunks[column] = chunk.encode()
        own.fields[CHUNKS] = LIST, array(STRUCT, chunks)
        groups[group] = own.encode()
    footer.fields[GROUPS] = LIST, array(STRUCT, groups)
    if rows is not None:
        footer.set_number(3, rows)
    encoded = footer.encode()
    return data[:start] + encoded + len(encoded).to_bytes(4, "little") + b"PAR1"


FLAT = pa.table({"a": [f"a{n}" for n in range(8)], "b": [f"b{n}" for n in range(8)]})
NESTED = pa.table({"s": [{"x": n, "y": n} for n in range(8)], "l": [[n] for n in range(8)]})
LIES = {
    "first of two columns": lying_parquet(FLAT, {(0, 0): 0, (1, 0): 0}),
    "the same rows of all columns": lying_parquet(FLAT, {(1, 0): 0, (1, 1): 0}),
    "other rows of each column": lying_parquet(FLAT, {(0, 0): 0, (1, 1): 0}),
    "the only column of the last row group": lying_parquet(FLAT.select(["a"]), {(1, 0): 0}),
    "a negative number": lying_parquet(FLAT.select(["a"]), {(0, 0): -4}),
    "one field of a struct": lying_parquet(NESTED.select(["s"]), {(0, 1): 0, (1, 1): 0}),
    "all fields of a struct": lying_parquet(NESTED.select(["s"]), {(0, 0): 0, (0, 1): 0}),
    "a list": lying_parquet(NESTED.select(["l"]), {(1, 0): 0}),
    "more rows in the footer than in row groups": lying_parquet(FLAT, {}, rows=12),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("ignore", [False, True])
def test_a_parquet_file_with_fewer_rows_than_it_says_is_refused(lie: str, ignore: bool) -> None:
    whole = pa.schema([*FLAT.schema, *NESTED.schema])
    names = parquet.read_schema(pa.BufferReader(LIES[lie])).names
    schema = pa.schema([whole.field(name) for name in names])
    source = SourceFile(lambda: io.BytesIO(LIES[lie]), detect("t.parquet"), "t.parquet")
    with pytest.raises(InputError, match=r"'t\.parquet' is (damaged|not a readable Parquet file): "):
        read(source, schema, on_bad_row=(lambda _: None) if ignore else None).read_all()


def test_a_parquet_file_whose_footer_counts_no_rows_is_read() -> None:
    """As that of some writers does. Its row groups have counts of their own."""
    data = lying_parquet(FLAT, {}, rows=0)
    source = SourceFile(lambda: io.BytesIO(data), detect("t.parquet"), "t.parquet")
    assert read(source, None).read_all() == FLAT


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie != "a list"])
def test_a_parquet_file_with_fewer_rows_than_it_says_is_not_adopted(lie: str, tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(LIES[lie])
    with pytest.raises(AdoptionError, match="rows"):
        dolmen.open(str(tmp_path / "db")).adopt("t", str(tmp_path / "t.parquet"))


def test_adopted_lists_with_fewer_rows_than_their_footer_says_are_never_read_as_fewer(tmp_path: Path) -> None:
    """Footers do not count the rows of lists, so this only shows when they are read."""
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / "in" / f"{number}.parquet").write_bytes(LIES["a list"])
    database = dolmen.open(str(tmp_path / "db"))
    database.adopt("t", str(tmp_path / "in"))
    for act in (lambda: database.table("t").scan().to_arrow(), lambda: database.compact("t")):
        with pytest.raises(CorruptionError, match=r"0 rows.* 4"):
            act()
    assert not database.verify(deep=True).ok


def test_an_arrow_file_whose_footer_lists_fewer_record_batches_is_refused() -> None:
    sink = io.BytesIO()
    with ipc.new_file(sink, FLAT.schema) as writer:
        writer.write_table(FLAT, max_chunksize=2)
    data = bytearray(sink.getvalue())
    start = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    places = [place for place in range(start, len(data) - 10, 4) if data[place : place + 4] == b"\4\0\0\0"]
    outcomes = set()
    for place in places:
        for batches in range(4):
            lying = data[:place] + bytes([batches]) + data[place + 1 :]
            source = SourceFile(lambda lying=lying: io.BytesIO(lying), detect("t.arrow"), "t.arrow")  # type: ignore[misc]
            try:
                assert read(source, FLAT.schema).read_all().num_rows == 8
            except InputError as error:
                outcomes.add(str(error).partition(" record batch")[0])
    assert {f"file 't.arrow' is damaged: its footer lists {batches}" for batches in range(4)} <= outcomes
