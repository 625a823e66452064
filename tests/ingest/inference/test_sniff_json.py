"""Where the rows of JSON files are, as a sample shows."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from dolmen.ingest.formats.formats import SourceFile, detect, read
from dolmen.ingest.formats.source_file import ReadOptions
from dolmen.ingest.inference.sniff.json_shape import sniff_json

ITEMS = [{"id": number, "name": f"n{number}"} for number in range(3)]
MANY = [{"id": number, "name": f"n{number}", "text": "x" * 50} for number in range(30)]


def _shapes(data: bytes | str, *, whole: bool = True, **given: Any) -> list[str]:
    sample = data if isinstance(data, bytes) else data.encode()
    return [each.dialect.json_rows for each in sniff_json(sample, whole=whole, known=given)]


def _rows(data: bytes) -> list[dict[str, Any]]:
    """The rows of a file by its best candidate."""
    best = sniff_json(data, whole=True, known={})[0]
    source = SourceFile(lambda: io.BytesIO(data), detect("t.json"), "t.json", ReadOptions(dialect=best.dialect))
    rows: list[dict[str, Any]] = read(source, None).read_all().to_pylist()
    return rows


LINES = "".join(f"{json.dumps(each)}\n" for each in ITEMS)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (LINES, "lines"),
        (LINES.replace("\n", "\r\n\n"), "lines"),
        (LINES.strip(), "lines"),
        (json.dumps(ITEMS), "values"),
        (json.dumps(ITEMS, indent=1), "values"),
        (LINES.replace("\n", ""), "values"),
        ("".join(f"\x1e{line}\n" for line in LINES.splitlines()), "values"),
        (LINES.replace("\n", ",\n"), "values"),
        (json.dumps(ITEMS[0], indent=2), "values"),
        (json.dumps(ITEMS) + "\n" + json.dumps(ITEMS), "values"),
        ("\ufeff" + json.dumps(ITEMS), "values"),
    ],
)
def test_objects_are_found_in_each_layout(text: str, shape: str) -> None:
    assert _shapes(text)[0] == shape
    assert _rows(text.encode())[0] == ITEMS[0]


@pytest.mark.parametrize("data", [b"", b"  \n", b"id,name\n1,x\n", b"hello", b"<a/>", b"{", b"[", b"{x}"])
def test_what_is_no_json_has_no_candidates(data: bytes) -> None:
    assert _shapes(data) == []


@pytest.mark.parametrize(
    ("envelope", "path"),
    [
        ({"Records": ITEMS}, "Records"),
        ({"total": 3, "data": ITEMS, "next": None}, "data"),
        ({"type": "FeatureCollection", "crs": {"type": "x"}, "features": ITEMS}, "features"),
        ({"@odata.context": "x", "value": ITEMS}, "value"),
        ({"d": {"results": ITEMS}}, "d.results"),
        ({"responseHeader": {"status": 0}, "response": {"numFound": 3, "start": 0, "docs": ITEMS}}, "response.docs"),
        ({"took": 3, "timed_out": False, "hits": {"total": {"value": 3}, "hits": ITEMS}}, "hits.hits"),
        ({"schema": {"fields": ITEMS, "pandas_version": "1"}, "data": ITEMS}, "data"),
        ({"data": ITEMS, "included": ITEMS}, "data"),
        ({"employees": ITEMS}, "employees"),
        ({"anything": MANY, "author": "x"}, "anything"),
        ({"exported": "2026-02-01", "users": ITEMS}, "users"),
        ({"order": 7, "customer": "x", "tags": None, "lines": ITEMS}, "lines"),
        ({"range": "A1:B3", "values": ITEMS}, "values"),
        ({"updated": 1, "ttl": 0, "data": {"bikes": ITEMS}}, "data.bikes"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_envelope_around_rows_is_found_and_what_is_left_out_is_said(envelope: dict[str, Any], path: str) -> None:
    for text in (json.dumps(envelope), json.dumps(envelope, indent=2)):
        best, *others = sniff_json(text.encode(), whole=True, known={})
        assert best.dialect.json_rows.removeprefix("$.") == path
        beside = [name for name in envelope if name != path.partition(".")[0]]
        assert all(repr(name) in best.losses[0] for name in beside)
        assert others[-1].dialect.json_rows in ("lines", "values")
        assert [each["id"] for each in _rows(text.encode())] == [each["id"] for each in envelope_rows(envelope, path)]


def envelope_rows(value: Any, path: str) -> list[dict[str, Any]]:
    for name in path.split("."):
        value = value[name]
    rows: list[dict[str, Any]] = value
    return rows


@pytest.mark.parametrize(
    "row",
    [
        {"order": 7, "customer": {"name": "x"}, "lines": ITEMS},
        {"order": 7, "tags": ["x"], "lines": ITEMS},
        {"name": "x", "version": "1", "contributors": ITEMS[:1]},
        {"data": ITEMS, "items": ITEMS, "rows": ITEMS},
        {"id": 1, "left": ITEMS, "right": ITEMS},
        {"version": "0", "detail-type": "x", "source": "y", "detail": {"items": ITEMS}},
        {"before": None, "after": {"items": ITEMS}, "op": "c"},
    ],
    ids=lambda row: next(iter(row)),
)
def test_an_object_that_may_be_a_row_is_one_and_the_lists_in_it_are_named(row: dict[str, Any]) -> None:
    best, *others = sniff_json(json.dumps(row).encode(), whole=True, known={})
    assert best.dialect.json_rows == "lines"
    assert all(each.dialect.json_rows in best.notes[0] for each in others)
    assert len(_rows(json.dumps(row).encode())) == 1


def test_several_envelopes_are_read_together_but_rows_that_have_lists_are_rows() -> None:
    pages = [{"Records": ITEMS}, {"Records": []}, {"Records": ITEMS[:1]}]
    for between in ("\n", ""):
        text = between.join(map(json.dumps, pages))
        assert _shapes(text)[0] == "Records"
        assert len(_rows(text.encode())) == 4
    orders = [{"order": number, "items": ITEMS} for number in range(3)]
    assert _shapes("\n".join(map(json.dumps, orders)))[0] == "lines"


def test_a_sample_that_is_cut_off_anywhere_shows_its_shape() -> None:
    for text, shape in (
        (json.dumps(MANY), "values"),
        ("".join(f"{json.dumps(each)}\n" for each in MANY), "lines"),
        (json.dumps({"Records": MANY, "x": 1}, indent=1), "Records"),
        (json.dumps({"result": {"data": [{"text": '"}]{', "n": [each]} for each in MANY]}}), "result.data"),
    ):
        for end in range(len(text) // 2, len(text), 7):
            assert _shapes(text[:end], whole=False)[0] == shape, text[end - 20 : end]


def test_what_the_user_has_set_stays() -> None:
    (only,) = sniff_json(json.dumps({"Records": ITEMS}).encode(), whole=True, known={"json_rows": "lines"})
    assert (only.dialect.json_rows, only.notes) == ("lines", ())
    (best, *_) = sniff_json(LINES.encode(), whole=True, known={"timestamp_formats": ("%d/%m/%Y",)})
    assert best.dialect.timestamp_formats == ("%d/%m/%Y",)


def test_values_that_are_no_objects_are_a_column() -> None:
    assert _rows(b"[1, 2]") == [{"value": 1}, {"value": 2}]
    assert _rows(b'[["a", "b"], ["c"]]') == [{"value": ["a", "b"]}, {"value": ["c"]}]
    assert "'value'" in sniff_json(b"[1, 2]", whole=True, known={})[0].notes[0]


def test_deep_and_damaged_samples_are_no_trouble() -> None:
    for data in (
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b'{"a":1}}}}',
        b'[{"a":1},',
        b'{"a":"\xff\xfe"}',
        b'[{"a":1}]' + b"\0",
    ):
        for whole in (True, False):
            assert set(_shapes(data, whole=whole)) <= {"lines", "values"}
