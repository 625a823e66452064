"""SQLAlchemy on a database: engines, reflection, types, pandas and the ORM."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import dolmen
from dolmen.dbapi import OperationalError

_numbers = itertools.count()
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
for _name, _target in PROJECT["entry-points"]["sqlalchemy.dialects"].items():
    registry.register(_name, *_target.split(":"))


@pytest.fixture
def url() -> str:
    return f"alchemy-{next(_numbers)}"


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"dolmen+memory://{url}")
    yield engine
    engine.dispose()


METADATA = sa.MetaData()
KINDS = sa.Table(
    "kinds",
    METADATA,
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("part", sa.String(5), primary_key=True),
    sa.Column("flag", sa.Boolean),
    sa.Column("small", sa.SmallInteger, nullable=False),
    sa.Column("whole", sa.Integer),
    sa.Column("real", sa.Float),
    sa.Column("price", sa.Numeric(12, 3)),
    sa.Column("text", sa.Text),
    sa.Column("body", sa.LargeBinary),
    sa.Column("day", sa.Date),
    sa.Column("hour", sa.Time),
    sa.Column("at", sa.DateTime),
    sa.Column("zoned", sa.DateTime(timezone=True)),
    sa.Column("uuid", sa.Uuid),
    sa.Column("json", sa.JSON),
)
ROW = {
    "id": 1, "part": "a", "flag": True, "small": -3, "whole": 4, "real": 0.1, "price": Decimal("1.500"), "text": "?:x",
    "body": b"\0\xff", "day": date(2026, 1, 5), "hour": time(1, 2, 3), "at": datetime(2026, 1, 5, 1),
    "zoned": datetime(2026, 1, 5, tzinfo=UTC), "uuid": UUID(int=7), "json": {"a": [1, None]},
}  # fmt: skip


def test_urls_name_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dolmen.open("shop").sql("CREATE TABLE items (id BIGINT)")
    for text in ("dolmen:///shop", f"dolmen:///{tmp_path}/shop"):
        assert sa.inspect(sa.create_engine(text)).get_table_names() == ["items"]
    dialect = sa.create_engine("dolmen+s3://").dialect
    assert dialect.create_connect_args(sa.make_url("dolmen+s3://bucket/a/b"))[0] == ["s3://bucket/a/b"]
    with pytest.raises(sa.exc.ArgumentError, match="dolmen:///directory"):
        sa.create_engine("dolmen://shop").connect()


@pytest.mark.slow
def test_all_kinds_of_columns_come_back(engine: sa.Engine) -> None:
    METADATA.create_all(engine)
    METADATA.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(KINDS), ROW)
        nulls = {column.name: None for column in KINDS.c if column.nullable}
        connection.execute(sa.insert(KINDS), [{**ROW, "id": 2}, {**ROW, **nulls, "id": 3, "json": sa.null()}])
    with engine.connect() as connection:
        rows = connection.execute(sa.select(KINDS).order_by(KINDS.c.id)).mappings().all()
        assert [dict(row) for row in rows] == [ROW, {**ROW, "id": 2}, {**ROW, **nulls, "id": 3}]
        connection.execute(sa.insert(KINDS), {**ROW, "id": 4, "price": 0.1, "real": Decimal("0.5")})
        changed = sa.select(KINDS.c.price, KINDS.c.real).where(KINDS.c.id == 4)
        assert connection.execute(changed).all() == [(Decimal("0.100"), 0.5)]
        connection.rollback()
        for name in ("price", "text", "body", "day", "hour", "at", "zoned", "uuid", "real"):
            found = connection.scalars(sa.select(KINDS.c.id).where(KINDS.c[name] == ROW[name]).order_by(KINDS.c.id))
            assert found.all() == [1, 2], name


def test_tables_are_reflected(engine: sa.Engine, url: str) -> None:
    METADATA.create_all(engine)
    dolmen.open(f"memory://{url}").sql(
        "CREATE TABLE nested (l INTEGER[], s STRUCT(x INTEGER), u UBIGINT NOT NULL);"
        "COMMENT ON COLUMN nested.l IS 'list'"
    )
    inspector = sa.inspect(engine)
    assert inspector.get_table_names() == ["kinds", "nested"] == inspector.get_table_names("main")
    assert inspector.get_pk_constraint("kinds")["constrained_columns"] == ["id", "part"]
    reflected = sa.Table("kinds", sa.MetaData(), autoload_with=engine)
    assert [(column.name, column.nullable) for column in reflected.c] == [(c.name, c.nullable) for c in KINDS.c]
    assert reflected.primary_key.columns.keys() == ["id", "part"]
    assert isinstance(reflected.c.price.type, sa.Numeric)
    assert (reflected.c.price.type.precision, reflected.c.price.type.scale) == (12, 3)
    assert reflected.c.zoned.type.timezone
    nested = {column["name"]: column for column in inspector.get_columns("nested")}
    assert str(nested["l"]["type"].compile(engine.dialect)) == "INTEGER[]"
    assert (nested["l"]["comment"], nested["u"]["nullable"]) == ("list", False)
    assert inspector.has_table("kinds")
    assert not inspector.has_table("other")
    with pytest.raises(sa.exc.NoSuchTableError):
        inspector.get_columns("other")
    copied = sa.MetaData()
    reflected.to_metadata(copied, name="copied").create(engine)
    nested_copy = sa.Table("nested", sa.MetaData(), autoload_with=engine).to_metadata(copied, name="nested_copy")
    nested_copy.create(engine)
    db = dolmen.open(f"memory://{url}")
    assert db.table("copied").schema.equals(db.table("kinds").schema)
    assert db.table("nested_copy").schema.field("l").type == db.table("nested").schema.field("l").type


def test_pandas_reads_and_writes(engine: sa.Engine, url: str) -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2, 3],
            "name": ["Ada", None, "Linus"],
            "at": pd.to_datetime(["2026-01-05"] * 3),
            "x": [0.5, None, 2.0],
        }
    )
    frame.to_sql("people", engine, index=False)
    frame.set_index("id").to_sql("people", engine, if_exists="append")
    assert dolmen.open(f"memory://{url}").table("people").count() == 6
    frame.to_sql("people", engine, index=False, if_exists="replace", chunksize=2)
    found = pd.read_sql("SELECT * FROM people ORDER BY id", engine)
    pd.testing.assert_frame_equal(found, frame, check_dtype=False)
    assert pd.read_sql_table("people", engine, columns=["name"]).shape == (3, 1)
    parameters = {"least": 2}
    assert pd.read_sql(sa.text("SELECT id FROM people WHERE id >= :least"), engine, params=parameters).shape == (2, 1)
    chunks = pd.read_sql("SELECT id FROM people ORDER BY id", engine, chunksize=2)
    assert [chunk["id"].tolist() for chunk in chunks] == [[1, 2], [3]]


class Base(DeclarativeBase):
    pass


class Person(Base):
    __tablename__ = "person"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(index=True)
    friend: Mapped[int | None] = mapped_column(sa.ForeignKey("person.id"))


def test_objects_are_added_changed_and_deleted(engine: sa.Engine) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Person(id=number, name=f"p{number}", friend=None) for number in range(4)])
        session.flush()
        session.get_one(Person, 2).name = "two"
        session.delete(session.get_one(Person, 3))
        session.commit()
    with Session(engine) as session:
        query = sa.select(Person.name).where(Person.id.in_([1, 2, 3])).order_by(Person.id).limit(5).offset(1)
        assert session.scalars(query).all() == ["two"]
        assert session.scalars(sa.select(Person).where(Person.id.in_([]))).all() == []
        assert session.scalar(sa.select(sa.func.count()).where(Person.name.regexp_match("^p"))) == 2
        changed = sa.update(Person).where(Person.id == 1).values(name="one").returning(Person.id, Person.name)
        assert session.execute(changed).all() == [(1, "one")]
        session.rollback()
        assert session.get_one(Person, 1).name == "p1"
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.execute(sa.insert(Person), {"id": 1, "name": "again", "friend": None})


def test_transactions_are_serializable_or_commit_by_themselves(engine: sa.Engine) -> None:
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(Person), {"id": 1, "name": "a", "friend": None})
    with engine.connect() as first, engine.connect() as second:
        assert first.get_isolation_level() == "SERIALIZABLE"
        for connection in (first, second):
            assert connection.scalar(sa.select(Person.name)) == "a"
            connection.execute(sa.update(Person).values(name="b"))
        first.commit()
        with pytest.raises(sa.exc.OperationalError) as found:
            second.commit()
        assert isinstance(found.value.orig, OperationalError)
        assert found.value.orig.retryable
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.update(Person).values(name="c"))
        connection.rollback()
        assert connection.scalar(sa.select(Person.name)) == "c"
    with engine.connect() as connection:
        assert connection.get_isolation_level() == "SERIALIZABLE"


def test_checks_are_declared_reflected_and_kept(engine: sa.Engine) -> None:
    metadata = sa.MetaData()
    checked = sa.Table(
        "checked",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("n", sa.Integer, sa.CheckConstraint("n > 0", name="positive")),
        sa.Column("text", sa.String),
        sa.CheckConstraint("n < 100 OR text IS NOT NULL"),
    )
    metadata.create_all(engine)
    assert sa.inspect(engine).get_check_constraints("checked") == [
        {"name": "positive", "sqltext": "n > 0"},
        {"name": "checked_check", "sqltext": "n < 100 OR text IS NOT NULL"},
    ]
    with engine.begin() as connection, pytest.raises(sa.exc.IntegrityError, match="the check 'positive' is FALSE"):
        connection.execute(sa.insert(checked).values(id=1, n=0))
    with engine.begin() as connection:
        connection.execute(sa.insert(checked).values(id=1, n=7))
        assert connection.scalar(sa.select(checked.c.n)) == 7


def test_comments_and_defaults_are_declared_and_reflected(engine: sa.Engine) -> None:
    columns = [
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False, comment="it's the key"),
        sa.Column("n", sa.Integer, server_default="5"),
        sa.Column("price", sa.Numeric(8, 2), server_default=sa.text("1.5")),
        sa.Column("made", sa.DateTime(timezone=True), server_default=sa.func.now()),
    ]
    sa.Table("noted", sa.MetaData(), *columns, comment="a 'note'").create(engine)
    inspector = sa.inspect(engine)
    assert inspector.get_table_comment("noted") == {"text": "a 'note'"}
    assert [(each["default"], each["comment"]) for each in inspector.get_columns("noted")] == [
        (None, "it's the key"), ("'5'", None), ("'1.50'", None), ("now()", None)
    ]  # fmt: skip
    copy = sa.Table("noted", sa.MetaData(), autoload_with=engine).to_metadata(sa.MetaData(), name="copied")
    copy.create(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(copy), {"id": 1})
        assert connection.execute(sa.select(copy.c.n, copy.c.price)).all() == [(5, Decimal("1.50"))]
        assert connection.scalar(sa.select(copy.c.made)).tzinfo is not None


@pytest.mark.slow
def test_only_what_the_primary_key_makes_unique_may_be_unique(engine: sa.Engine) -> None:
    def table(name: str, *more: sa.SchemaItem, **of_id: bool) -> sa.Table:
        columns = [
            sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False, **of_id),
            sa.Column("n", sa.Integer),
        ]
        return sa.Table(name, sa.MetaData(), *columns, *more)

    table("fine", sa.UniqueConstraint("n", "id"), sa.Index("by_id", "id", unique=True), unique=True).create(engine)
    for wrong in (sa.UniqueConstraint("n"), sa.Index("by_n", "n", unique=True)):
        with pytest.raises(sa.exc.SQLAlchemyError, match="only the primary key is unique"):
            table("wrong", wrong).create(engine)
    assert sa.inspect(engine).get_table_names() == ["fine"]


def test_operators_mean_what_they_say(engine: sa.Engine) -> None:
    seven, two = sa.literal(7), sa.literal(2)
    expressions = {
        seven // two: 3,
        -seven // two: -4,
        seven / two: 3.5,
        seven % two: 1,
        seven.bitwise_xor(two): 5,
        seven.bitwise_and(two): 2,
        sa.literal("abab").regexp_replace("b", "x"): "axab",
        sa.literal(None).is_distinct_from(seven): True,
    }
    with engine.connect() as connection:
        for expression, value in expressions.items():
            assert connection.scalar(sa.select(expression)) == value, str(expression)


def test_json_has_paths_and_durations_are_added(engine: sa.Engine) -> None:
    odd, day = 'a"b\\c.$[0]é/*~', timedelta(days=1, microseconds=3)
    docs = sa.Table(
        "docs",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("data", sa.JSON),
        sa.Column("at", sa.DateTime),
        sa.Column("took", sa.Interval),
    )
    rows = [
        {"id": 1, "data": {odd: [1, {"deep": "it's"}], "n": 2.5, "ok": True}, "at": datetime(2026, 3, 1), "took": -day},
        {"id": 2, "data": None, "at": None, "took": None},
        {"id": 3, "data": {"n": None}, "at": datetime(1969, 12, 31), "took": timedelta(0)},
    ]
    with engine.begin() as connection:
        docs.create(connection)
        connection.execute(docs.insert(), rows)

        def ask(*columns: Any) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in connection.execute(sa.select(*columns).order_by(docs.c.id))]

        data = docs.c.data
        assert ask(data[odd], data[(odd, 1, "deep")].as_string(), data["n"].as_float(), data["ok"].as_boolean()) == [
            ([1, {"deep": "it's"}], "it's", 2.5, True), (None,) * 4, (None,) * 4
        ]  # fmt: skip
        assert ask(data[(odd, 0)].as_integer(), data[(odd, -1, "deep")])[0] == (1, "it's")
        assert ask(docs.c.took, docs.c.at + day, docs.c.took - day, docs.c.at - docs.c.at)[0] == (
            -day, datetime(2026, 3, 1) + day, -2 * day, timedelta(0)
        )  # fmt: skip
        assert ask(docs.c.at - docs.c.took, docs.c.took + docs.c.at) == [
            (datetime(2026, 3, 1) + day, datetime(2026, 3, 1) - day), (None, None), (datetime(1969, 12, 31),) * 2
        ]  # fmt: skip
        found = connection.execute(sa.select(docs.c.id).where(data["n"].as_float() > 2, docs.c.took < timedelta(0)))
        assert found.scalars().all() == [1]
        assert connection.scalar(sa.select(sa.func.sum(docs.c.id) / sa.literal(Decimal("2.5")))) == Decimal("2.4")
