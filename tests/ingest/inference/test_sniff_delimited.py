"""The dialects of delimited text: each sample as people read it, and random tables in random dialects."""

from __future__ import annotations

import csv
import io
import os
import random
from collections.abc import Mapping
from typing import Any

import pytest

from dolmen.errors import InputError
from dolmen.format.dialect import STRICT, Dialect
from dolmen.format.ingest_properties import FORMATS
from dolmen.ingest.inference.candidate import Candidate
from dolmen.ingest.inference.sniff.delimited import sniff_delimited
from ingest.inference.delimited_samples import SAMPLES, Sample

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
ATTRIBUTES = ("delimiter", "quote", "escape", "comment", "skip_lines", "header", "names", "ragged", "trim")


def sniff(text: str | bytes, *, whole: bool = True, kind: Any = None, **given: Any) -> list[Candidate]:
    return sniff_delimited(text.encode() if isinstance(text, str) else text, whole=whole, known=given, kind=kind)


def found(candidate: Candidate) -> dict[str, Any]:
    """What a candidate's dialect has other than plain CSV; the delimiter in any case."""
    dialect = candidate.dialect
    differs = {
        name: getattr(dialect, name) for name in ATTRIBUTES if getattr(dialect, name) != getattr(Dialect(), name)
    }
    return differs | {"delimiter": dialect.delimiter or FORMATS[candidate.kind].delimiter}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name.encode("unicode_escape").decode())
def test_a_sample_is_read_as_people_read_it(sample: Sample) -> None:
    if sample.refused:
        with pytest.raises(InputError) as error:
            sniff(sample.text)
        assert sample.refused in str(error.value)
        return
    best = sniff(sample.text)[0]
    best.dialect.check()
    assert Dialect.of(best.dialect.properties()) == best.dialect
    expected: Mapping[str, Any] = {"delimiter": ","} | sample.dialect
    if "one field" in sample.note:
        expected = {**expected, "delimiter": found(best)["delimiter"]}
        assert found(best)["delimiter"] not in sample.text or '"' in sample.text
    assert found(best) == expected
    assert any(sample.note in note for note in best.notes) if sample.note else True


def test_two_dialects_that_both_fit_are_both_returned() -> None:
    delimiters = [found(each)["delimiter"] for each in sniff("k,a;b\nx,y;z\nu,v;w\n", header=True)]
    assert delimiters == [";", ","]
    quotes = [each.dialect.quote for each in sniff('id\tx\n1\t"a\n2\tb"\n3\tc\n')]
    assert quotes == [None, '"']
    assert [each.dialect.header for each in sniff("x,y\na,b\nc,d\n")] == [True, False]
    assert any("assumed to be a row" in note for note in sniff("x,y\na,b\nc,d\n")[1].notes)


def test_quotes_and_escapes_beyond_the_head_count() -> None:
    rows = "".join(f'{n},"x",{n}\n' for n in range(20_000))
    best = sniff("a,b,c\n" + rows + '5,"say \\"hi\\", she said",6\n' + rows)[0]
    assert found(best) == {"delimiter": ",", "escape": "\\"}
    rows = "".join(f"{n}\tx\t{n}\n" for n in range(20_000))
    best = sniff("a\tb\tc\n" + rows + '5\t"hi" she said\t6\n' + rows)[0]
    assert found(best) == {"delimiter": "\t", "quote": None}


def test_one_column_is_no_second_choice() -> None:
    assert all("one field" not in note for each in sniff("a;b\n1;2\n1;2;3\n3;4\n")[1:] for note in each.notes)


def test_equal_readings_are_one_candidate_and_the_plainer_one() -> None:
    (only,) = sniff('a\tb\n1\t5"\n2\t6"\n')
    assert only.dialect == STRICT


def test_what_is_given_is_not_guessed() -> None:
    text = "# x\na;b,c\n1;2,3\n4;5,6\n"
    assert found(sniff(text, delimiter=";")[0]) == {"delimiter": ";", "comment": "#"}
    assert found(sniff(text, comment=None)[0]) == {"delimiter": ";", "skip_lines": 1}
    assert found(sniff(text, skip_lines=2)[0]) == {"delimiter": ";", "skip_lines": 2, "header": False}
    assert found(sniff(text, header=False, names="number")[0])["header"] is False
    assert sniff(text, encoding="windows-1252", nulls=("", "x"))[0].dialect.nulls == ("", "x")
    for delimiter in (",", ";", "\t", "x"):
        assert sniff("a,b\n1,2\n", delimiter=delimiter)[0].dialect.delimiter in (delimiter, None)
    assert found(sniff("a,b\n1,2\n", quote=None)[0])["quote"] is None
    assert found(sniff('a,b\n1,"x \\"y\\""\n', escape="\\")[0])["escape"] == "\\"


def test_a_delimiter_that_is_the_formats_own_is_not_set() -> None:
    assert sniff("a\tb\n1\t2\n", kind="tsv")[0] == Candidate("tsv", STRICT)
    assert sniff("a\tb\n1\t2\n")[0] == Candidate("tsv", STRICT)
    assert sniff("a\tb\n1\t2\n", kind="csv")[0].dialect.delimiter == "\t"
    assert sniff("a,b\n1,2\n", kind="tsv")[0].dialect.delimiter == ","
    assert sniff("a,b\n1,2\n", kind="jsonl")[0] == Candidate("csv", STRICT)


@pytest.mark.parametrize("size", [*range(1, 40), 65_536, 100_000])
def test_a_sample_may_be_cut_anywhere(size: int) -> None:
    text = "id,text,n\n" + "".join(f'{n},"a, ""{n}""\nb",{n}\n' for n in range(9000))
    best = sniff(text.encode()[:size], whole=False)[0]
    assert found(best)["delimiter"] == "," or size < 12
    assert "ragged" not in found(best)


def test_records_beyond_the_head_are_counted() -> None:
    rows = "".join(f"{n},x,{n}\n" for n in range(20_000))
    assert sniff("a,b,c\n" + rows)[0] == Candidate("csv", STRICT)
    short = sniff("a,b,c\n" + rows + "1,y\n" + rows)[0]
    assert short.dialect.ragged == "fill"
    assert "1 record of the sample lacks" in short.notes[0]
    long = sniff("a,b,c\n" + rows + "1,y,2,3\n" + rows)[0]
    assert long.dialect == STRICT
    assert "1 record of the sample has another number" in long.notes[0]
    broken = sniff("a,b,c\n" + rows + "hello\nworld,6\n" + rows)[0]
    assert broken.dialect == STRICT
    assert "footer" in sniff("a,b,c\n" + rows + "Total: 3\n")[0].notes[0]


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe,\x80\n1,2\n",
        b"a" * 200_000,
        b"," * 100_000,
        b'"' * 50_001,
        b'a,"' * 20_000,
        b"\n" * 1000 + b"a,b\n1,2\n",
        b"a=" * 30_000 + b'"',
        b"\\" * 10_001,
        b"#" * 1000,
        b"\0,\0\n" * 100,
        b"x, " * 30_000,
        b'a,b\n1,"' + b"x\n" * 50_000,
        b"[" * 70_000,
        b"- " * 40_000,
    ],
    ids=range(14),
)
def test_hostile_text_ends_in_candidates_or_a_named_error(text: bytes) -> None:
    for whole in (True, False):
        try:
            candidates = sniff(text, whole=whole)
        except InputError:
            continue
        for candidate in candidates:
            candidate.dialect.check()
            Dialect.of(candidate.dialect.properties())


WORDS = [
    "Ann",
    "Bob Marley",
    "x",
    "Über",
    "a, b",
    "c; d",
    "e|f",
    'say "hi"',
    "it's",
    "two\nlines",
    "",
    "N/A",
    "tab\there",
]
MAKERS = {
    "integer": lambda rng: str(rng.randrange(-(10**6), 10**6)),
    "number": lambda rng: f"{rng.uniform(-1000, 1000):.2f}",
    "date": lambda rng: f"{rng.randrange(1900, 2100)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}",
    "time": lambda rng: f"2025-01-{rng.randrange(1, 29):02} {rng.randrange(24):02}:{rng.randrange(60):02}:00",
    "boolean": lambda rng: rng.choice(["true", "false"]),
    "code": lambda rng: f"{rng.choice('ABCDEF')}{rng.randrange(1000):03}",
    "text": lambda rng: rng.choice(WORDS),
}


def _cells(text: str, dialect: Dialect, delimiter: str) -> list[list[str]]:
    """The cells that Python's csv reads by a dialect; a second opinion on what it means."""
    lines = text.splitlines(keepends=True)[dialect.skip_lines :]
    kept = (line for line in lines if dialect.comment is None or not line.startswith(dialect.comment))
    reader = csv.reader(
        kept,
        delimiter=delimiter,
        quotechar=dialect.quote,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        escapechar=dialect.escape,
    )
    return [row for row in reader if row]


@pytest.mark.slow
def test_random_tables_in_random_dialects_are_read_back() -> None:
    rng = random.Random(SEED)
    right = noted = 0
    for number in range(120):
        kinds = [rng.choice(list(MAKERS)) for _ in range(rng.randrange(2, 8))]
        kinds[rng.randrange(len(kinds))] = rng.choice(["integer", "number", "date"])  # a header can be told
        header = [f"{kind}_{index}" for index, kind in enumerate(kinds)]
        rows = [[MAKERS[kind](rng) for kind in kinds] for _ in range(rng.randrange(3, 60))]
        quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
        escape = rng.choice([None, None, "\\"])
        target = io.StringIO()
        writer = csv.writer(
            target,
            delimiter=rng.choice(",;\t|,;"),
            quotechar='"',
            quoting=quoting,
            doublequote=escape is None,
            escapechar=escape,
            lineterminator=rng.choice(["\n", "\r\n"]),
        )
        has_header = rng.random() < 0.8
        table = [header, *rows] if has_header else rows
        writer.writerows(table)
        preamble = rng.choice(["", "", "# a comment\n", "Report of today\n"])
        text = preamble + target.getvalue()
        best = sniff(text)[0]
        delimiter = best.dialect.delimiter or FORMATS[best.kind].delimiter or ","
        case = f"DOLMEN_TEST_SEED={SEED}, table {number}: {best}\n{text[:2000]}"
        expected = [[cell.replace("\n", "") for cell in row] for row in table]
        cells = [
            [cell.replace("\r", "").replace("\n", "") for cell in row] for row in _cells(text, best.dialect, delimiter)
        ]
        if cells == expected and best.dialect.header == has_header:
            right += 1
        else:
            noted += 1
            assert best.notes, case
    assert right > 110, (SEED, right, noted)
