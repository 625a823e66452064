"""Some rows of a column are the same whether their pages are read alone or the whole column chunk is."""

from __future__ import annotations

import os
import random

import numpy as np
import pyarrow as pa
import pytest

from dolmen.format.page_locations import PageLocations
from dolmen.rows.scan.data_objects import DataFileFooter
from dolmen.rows.scan.file_bytes import FileBytes, picked_pages
from dolmen.rows.write.runs import WriteOptions
from support.random_tables import random_table
from support.written import Written, events, write

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "4711"))


def footer_of(written: Written, place: int) -> DataFileFooter:
    file = written.files[place]
    return DataFileFooter.parse(written.body(place)[file.footer[0] :], file)


def shown(values: pa.Array) -> tuple[pa.DataType, str]:
    """Its type and values, of which NaN is equal to NaN, and -0.0 is not 0.0."""
    return values.type, values.to_string(window=len(values))


@pytest.mark.parametrize("number", range(12))
def test_picked_rows_of_any_type_are_those_of_the_whole_chunk(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"{SEED}, {number}")
    for name, value in (("PAGE_BYTES", 256), ("PAGE_ROWS", 40), ("_MOST_BATCH_ROWS", 16)):
        monkeypatch.setattr(f"dolmen.rows.write.runs.{name}", value)
    monkeypatch.setattr("dolmen.rows.write.runs.has_index", lambda entry: True)
    written = write(random_table(rng, rng.choice([1, 300, 900])), options=WriteOptions(run_rows=500))
    alone = 0
    for place, file in enumerate(written.files):
        body, footer = written.body(place), footer_of(written, place)
        source = FileBytes.from_ranges([(0, body)], file.size, footer)
        for group in range(footer.metadata.num_row_groups):
            rows = np.array(sorted(rng.sample(range(footer.rows(group)), rng.randint(1, min(5, footer.rows(group))))))
            expected = {}
            for id_, column in footer.columns.items():
                whole = source.read(group, list(column.leaves)).column(0).combine_chunks().take(pa.array(rows))
                assert shown(source.pick(group, [id_], rows)[id_]) == shown(whole)
                picked = picked_pages(footer, group, column, rows)
                if picked is not None:
                    alone += 1
                    parts = [(start, body[start:end]) for start, end in picked.ranges()]
                    fetched = FileBytes.from_ranges(parts, file.size, footer)
                    assert shown(fetched.pick(group, [id_], rows)[id_]) == shown(whole)
                expected[id_] = shown(whole)
            together = source.pick(group, [*footer.columns], rows)
            assert {id_: shown(values) for id_, values in together.items()} == expected
    assert alone, "only nested columns are read whole"


@pytest.mark.slow
def test_every_flipped_bit_of_a_page_is_found_before_it_is_decoded() -> None:
    written = write(events(40), primary_key=["id"])
    (file,), body, footer = written.files, written.body(), footer_of(written, 0)
    for id_, column in footer.columns.items():
        picked = picked_pages(footer, 0, column, np.array([3]))
        assert picked is not None
        for start, end in picked.ranges():
            for place in range(start, end):
                changed = bytearray(body)
                changed[place] ^= 1 << place % 8
                with pytest.raises(OSError, match=r"checksum.*page"):
                    FileBytes.from_ranges([(0, bytes(changed))], file.size, footer).pick(0, [id_], np.array([3]))


def test_a_file_without_places_of_pages_or_with_other_bytes_instead_is_read_whole() -> None:
    written = write(events(40), primary_key=["id"])
    footer = footer_of(written, 0)
    chunks = footer.metadata.num_columns
    assert footer.pages is not None
    for block in (b"", b"x", b"other bytes of 8 and more", footer.page_block[:-5] + b"DPGS", footer.page_block[1:]):
        assert PageLocations.decode(block, chunks) is None
    assert PageLocations.decode(footer.page_block, chunks + 1) is None
    assert PageLocations.decode(footer.pages.encode(), chunks) is not None
