"""COPY reads and writes files on the paths that the caller allows, and on no other."""

from __future__ import annotations

from pathlib import Path

import pytest

import dolmen
from dolmen.errors import DuplicateKeyError, InputError


@pytest.fixture
def db(request: pytest.FixtureRequest) -> dolmen.Database:
    found = dolmen.open(f"memory://copy-{request.node.name}")
    found.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR, x DOUBLE); INSERT INTO t VALUES (1, 'a;b', 0.5), (2, NULL, 3)"
    )
    return found


@pytest.mark.slow
def test_rows_go_to_files_and_back(db: dolmen.Database, tmp_path: Path) -> None:
    for name in ("t.csv", "t.parquet", "t.jsonl.gz"):
        file = tmp_path / name
        assert db.sql(f"COPY t TO '{file}'", files=tmp_path).fetchall() == [(2,)]
        copied = db.sql(f"DELETE FROM t; COPY t FROM '{file}'", files=[file])
        assert copied.counts.rows_added == 2
        assert db.sql("FROM t ORDER BY id").fetchall() == [(1, "a;b", 0.5), (2, None, 3.0)]
    db.sql("COPY (SELECT id * 2 AS n FROM t) TO ? (FORMAT csv)", [str(tmp_path / "n")], files=tmp_path)
    assert (tmp_path / "n").read_text().split() == ["n", "2", "4"]
    with pytest.raises(DuplicateKeyError):
        db.sql(f"COPY t FROM '{tmp_path}/t.csv'", files=tmp_path)


def test_a_file_is_read_as_it_is_written(db: dolmen.Database, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id;s;x\n7;q;1,5\n8;;2,25\n")
    db.sql(f"COPY t FROM '{tmp_path}/in.csv'", files=str(tmp_path))
    db.sql(f"DELETE FROM t WHERE id < 7; COPY t TO '{tmp_path}/out.csv'", files=tmp_path)
    assert (tmp_path / "out.csv").read_text().splitlines()[1:] == ['7,"q",1.5', "8,,2.25"]
    db.sql(f"TRUNCATE t; COPY t FROM '{tmp_path}/in.csv' (DELIMITER ';', decimal ',', HEADER)", files=tmp_path)
    assert db["t"].count() == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("COPY t TO '{d}/x.csv'", None),
        ("COPY t TO '{d}/in/../x.csv'", "is not allowed"),
        ("COPY t FROM '{d}/link/secret.csv'", "is not allowed"),
        ("COPY t FROM 's3://bucket-evil/x.csv'", "is not allowed"),
        ("COPY t FROM 's3://bucket/../x.csv'", "is not allowed"),
        ("COPY t TO '{d}/in/x.nope'", "format"),
        ("COPY t TO '{d}/in/x.csv' (DELIMITER ';')", "delimiter=; can't be chosen"),
        ("COPY t TO '{d}/in/x.csv' (HEADER false)", "header=False can't be chosen"),
        ("COPY t TO '{d}/in/x.parquet' (HEADER)", "header=True can't be chosen"),
        ("COPY t TO '{d}/in/x' (FORMAT parquet, PARTITION_BY (id))", "not partition_by: .*--partition-by"),
        ("COPY t FROM '{d}/in/x.csv' (nope 3)", "nope=3 is unknown"),
        ("COPY t (id) FROM '{d}/in/x.csv'", "names its columns"),
        ("COPY (SELECT content FROM read_text('{d}/secret.csv')) TO '{d}/in/x.csv'", "may not be called"),
    ],
)
def test_other_paths_and_options_are_refused(
    db: dolmen.Database, tmp_path: Path, text: str, reason: str | None
) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "secret.csv").write_text("id\n1\n")
    (inside / "link").symlink_to(tmp_path)
    text = text.format(d=tmp_path).replace(f"{tmp_path}/link", f"{inside}/link")
    allowed = [inside, "s3://bucket/"] if reason else []
    with pytest.raises(InputError, match=reason or "is not allowed"):
        db.sql(text, files=allowed)
    with db.transaction() as tx, pytest.raises(InputError):
        tx.sql(text)
    assert sorted(path.name for path in tmp_path.rglob("*.csv")) == ["secret.csv"]
    assert db.refresh() == 1


def test_options_of_csv_may_say_what_is_written(db: dolmen.Database, tmp_path: Path) -> None:
    db.sql(f"COPY (SELECT 1 AS id, 'a' AS s) TO '{tmp_path}/x.csv' (FORMAT csv, HEADER, DELIMITER ',')", files=tmp_path)
    assert (tmp_path / "x.csv").read_text() == 'id,s\n1,"a"\n'
