"""A text is cut where DuckDB's own lexer cuts it, so a quote or a comment never hides the end of a statement."""

from __future__ import annotations

import random

import duckdb
import pytest

from dolmen.errors import InputError
from dolmen.sql.statements import split
from dolmen.sql.tokens import DUCKDB, tokenize

PIECES = [
    "'a;b'", "'it''s'", r"E'x\'y;'", r"'\'", '"q""t;"', "$$ ; ' $$", "$t$ $$ ; $t$", "-- c ; '\n", "/* /* ' */ ; */",
    "x", "x1", ";", ",", "=", "1.5e3", ".5", "t.b", "[1]", "x'FF'", "a::INT", "a<>b", "a->>'$.b'", "SELECT", "é",
]  # fmt: skip


def test_tokens_begin_where_duckdbs_do() -> None:
    rng = random.Random(1)
    for _ in range(500):
        text = " ".join(rng.choices(PIECES, k=rng.randrange(1, 9)))
        kinds = duckdb.token_type
        starts = [start for start, kind in duckdb.tokenize(text) if kind != kinds.comment]
        encoded = text.encode()
        expected = [len(encoded[:start].decode()) for start in starts]
        found = [token.start for token in tokenize(text, DUCKDB)]
        assert found == expected, text


def test_statements_end_at_semicolons_outside_of_quotes_and_comments() -> None:
    text = "DELETE FROM t WHERE s = 'a;b' -- ; c\n;; INSERT INTO t VALUES ($$;$$) /* ; */ ;"
    assert [each.text for each in split(text, DUCKDB)] == [
        "DELETE FROM t WHERE s = 'a;b'",
        "INSERT INTO t VALUES ($$;$$)",
    ]


@pytest.mark.parametrize(
    "text", ["SELECT 'a", 'SELECT "a', "SELECT $$a", "SELECT $t$a$$", "SELECT /* /* */ 1", "(1", "1)", "[1)"]
)
def test_what_is_left_open_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"open|missing|closes"):
        tokenize(text, DUCKDB)
