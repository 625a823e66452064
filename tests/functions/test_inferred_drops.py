"""The first file of a new table is inferred, later ones are read alike, and files of another dialect are rejects."""

from __future__ import annotations

import io
from typing import Any

import openpyxl
import pyarrow as pa
import pytest

from support.functions import World


def workbook(title: str, *rows: list[Any]) -> bytes:
    book, sink = openpyxl.Workbook(), io.BytesIO()
    for row in ([title], [], [None, "sku", "counted"], *([None, *row] for row in rows)):
        book.active.append(row)
    book.create_sheet("Notes").append(["by hand"])
    book.save(sink)
    return sink.getvalue()


def test_workbooks_of_tomorrow_are_read_as_the_first_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    first = world.drop("stock/january.xlsx", workbook("January", ["007", 12], ["008", "n/a"]))
    assert world.ingest(first) == []
    assert (
        world.database.table("stock").settings()
        | {
            "ingest_sheet": "Sheet",
            "ingest_skip_lines": 2,
            "ingest_nulls": ["", "n/a"],
        }
        == world.database.table("stock").settings()
    )
    assert world.ingest(world.drop("stock/february.xlsx", workbook("February", ["009", 5]))) == []
    assert world.rows("stock") == [
        {"sku": "007", "counted": 12},
        {"sku": "008", "counted": None},
        {"sku": "009", "counted": 5},
    ]
    book, sink = openpyxl.Workbook(), io.BytesIO()
    for row in (["sku", "counted"], ["010", 1]):
        book.active.append(row)
    book.save(sink)
    assert world.ingest(world.drop("stock/march.xlsx", sink.getvalue())) == []
    [report] = world.rejects().values()
    assert report["hint"] == {"ingest_skip_lines": 0}
    assert len(world.rows("stock")) == 3


def test_files_of_a_german_office_program_likewise(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOLMEN_AUTO_CREATE", "1")
    head = "Kunde;Betrag;Datum\n"
    first = world.drop("sales/1.csv", f"{head}Müller;1.234,50;31.01.2026\nNord;89,90;30.01.2026\n".encode("cp1252"))
    assert world.ingest(first) == []
    assert world.database.table("sales").schema.field("Betrag").type == pa.float64()
    assert world.ingest(world.drop("sales/2.csv", f"{head}Süd;100,00;02.02.2026\n".encode("cp1252"))) == []
    assert sum(row["Betrag"] for row in world.rows("sales")) == 1424.4
    assert (
        world.ingest(world.drop("sales/3.csv", "Kunde,Betrag,Datum\nOst,1.5,2026-02-03\nWest,2.5,2026-02-04\n")) == []
    )
    [report] = world.rejects().values()
    assert report["hint"]["ingest_delimiter"] == ","
    assert "separates the fields" in report["found"]
    assert len(world.rows("sales")) == 3
