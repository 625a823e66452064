# ruff: noqa: E501
"""Delete requests that must be refused, as data: each with what its error has to say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

TYPED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("score", pa.float64()),
        ("paid", pa.decimal128(20, 2)),
        ("small", pa.int8()),
        ("seen", pa.timestamp("us", tz="UTC")),
        ("born", pa.date32()),
        ("kind", pa.string()),
        ("raw", pa.binary()),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("x", pa.int32())])),
    ]
)
"""The table ``typed`` that requests are about; its primary key is ``id``."""


@dataclass(frozen=True)
class MalformedRequest:
    """A message's body and its refusal.

    Args:
        name: unique; which fault it has.
        body: JSON text, or what it is made from.
        reason: text that the error must contain.
        error: the error's class; ``MessageError`` and ``LimitError`` where the message itself is wrong, others where
            only the table can tell.
    """

    name: str
    body: Any
    reason: str
    error: str = "MessageError"

    @property
    def text(self) -> str:
        return self.body if isinstance(self.body, str) else json.dumps(self.body)

    @property
    def readable(self) -> bool:
        """Whether the message can be read, so that the table is asked."""
        return self.error not in ("MessageError", "LimitError") or self.name.startswith("applied: ")


_MANY = 1_000_001


def _message(name: str, body: Any, reason: str, error: str = "MessageError") -> MalformedRequest:
    return MalformedRequest(name, body, reason, error)


def _where(name: str, where: Any, reason: str, error: str = "PredicateError", table: str = "typed") -> MalformedRequest:
    return MalformedRequest(name, {"table": table, "where": where}, reason, error)


def _keys(name: str, keys: list[Any], reason: str, error: str, on: Any = ...) -> MalformedRequest:
    return MalformedRequest(name, {"table": "typed", "keys": keys, **({} if on is ... else {"on": on})}, reason, error)


_MESSAGES = [
    # JSON
    _message("empty", "", "not JSON"),
    _message("not JSON", "DELETE FROM events", "not JSON"),
    _message("truncated", '{"table": "events", "wh', "not JSON"),
    _message("trailing comma", '{"table": "events",}', "not JSON"),
    _message("two documents", '{"table": "a", "where": "x=1"} {}', "not JSON"),
    _message("single quotes", "{'table': 'events'}", "not JSON"),
    _message("a comment", '{"table": "a", "where": "x=1"} // all', "not JSON"),
    _message("a byte order mark", '\ufeff{"table": "a", "where": "x=1"}', "not JSON"),
    _message("a raw newline in text", '{"table": "a", "where": "x\n=1"}', "not JSON"),
    _message("hexadecimal", '{"table": "a", "keys": [0x10]}', "not JSON"),
    _message("a leading zero", '{"table": "a", "keys": [007]}', "not JSON"),
    _message("open without end", '{"where":' * 50_000, "nested too deeply"),
    _message("nested in lists", '{"table": "a", "keys": ' + "[" * 900 + "]" * 900 + "}", "nested more than"),
    _message("nested in objects", '{"table": "a", "where": ' + '{"x":' * 400 + "1" + "}" * 401, "nested more than"),
    _message("nested a little too deep", {"table": "a", "where": {"x": [[[[[[[1]]]]]]]}}, "nested more than"),
    _message("NaN", '{"table": "a", "where": {"x": NaN}}', "NaN is not JSON"),
    _message("NaN as a key", '{"table": "a", "keys": [NaN]}', "NaN is not JSON"),
    _message("Infinity", '{"table": "a", "keys": [-Infinity]}', "JSON"),
    _message("beyond a double", '{"table": "a", "where": {"x": 1e999}}', "double"),
    _message("below a double", '{"table": "a", "where": {"x": 1e-999}}', "double"),
    _message("a key beyond a double", '{"table": "a", "keys": [-1e400]}', "double"),
    _message("5,000 digits", '{"table": "a", "keys": [' + "9" * 5000 + "]}", "digits"),
    _message("5,000 digits and a point", '{"table": "a", "keys": [' + "9" * 5000 + ".5]}", "5,002 digits"),
    _message("a member twice", '{"table": "a", "table": "b", "where": "x=1"}', "'table'"),
    _message("where twice", '{"table": "a", "where": "x=1", "where": "TRUE"}', "'where'"),
    _message("a column twice", '{"table": "a", "where": {"x": 1, "x": 2}}', "'x'"),
    _message("a member twice among 20,000", '{"where": {' + ", ".join(f'"c{n}": 1' for n in range(20_000)) + ', "c19999": 2}}', "'c19999' is in an object"),
    _message("half a surrogate pair", '{"table": "a", "keys": ["\\ud83d"]}', "surrogate"),
    _message("half a surrogate pair as a column", '{"table": "a", "where": {"\\udc00": 1}}', "surrogate"),
    # not a request
    _message("an array", [{"table": "a", "where": "x=1"}], "not a list"),
    _message("null", None, "not null"),
    _message("a number", 7, "not a number"),
    _message("text", '"a"', "not text"),
    _message("true", True, "true or false"),
    _message("an empty object", {}, "'table', or 'tables'"),
    _message("a notification of S3", {"Records": []}, "unknown member 'Records'"),
    _message("an SNS envelope", {"Type": "Notification", "Message": '{"table": "a", "where": "x=1"}'}, "unknown member 'Message'"),
    # members
    _message("unknown member", {"table": "a", "were": "x = 1"}, "unknown member 'were'"),
    _message("a member in capitals", {"Table": "a", "where": "x=1"}, "unknown member 'Table'"),
    _message("a member with a space", {"table ": "a", "where": "x=1"}, "unknown member 'table '"),
    _message("an empty member", {"": 1, "table": "a", "where": "x=1"}, "unknown member ''"),
    _message("a very long member", {"m" * 100_000: 1, "table": "a"}, "unknown member 'mmm"),
    _message("a prototype", {"__proto__": {}, "table": "a", "where": "x=1"}, "unknown member '__proto__'"),
    _message("no table", {"where": "x = 1"}, "'table', or 'tables'"),
    _message("table and tables", {"table": "a", "tables": ["b"], "where": "x=1"}, "'table', or 'tables'"),
    # names of tables
    _message("table's name empty", {"table": "", "where": "x=1"}, "table name ''"),
    _message("table's name too long", {"table": "x" * 65, "where": "x=1"}, "table name"),
    _message("table's name in capitals", {"table": "Events", "where": "x=1"}, "table name 'Events'"),
    _message("table's name in full-width letters", {"table": "ｔyped", "where": "x=1"}, "table name"),
    _message("table's name with a newline", {"table": "typed\n", "where": "x=1"}, "table name 'typed\\n'"),
    _message("table's name with NUL", {"table": "typed\0", "where": "x=1"}, "table name"),
    _message("table's name with a quote", {"table": 'typed"', "where": "x=1"}, "table name"),
    _message("table's name with a schema", {"table": "main.typed", "where": "x=1"}, "table name 'main.typed'"),
    _message("table's name a statement", {"table": "typed; DROP TABLE typed", "where": "x=1"}, "table name"),
    _message("table a path", {"table": "../users", "where": "x=1"}, "table name"),
    _message("table a path down", {"table": "typed/../../rejected", "where": "x=1"}, "table name"),
    _message("table an absolute path", {"table": "/etc/passwd", "where": "x=1"}, "table name"),
    _message("table a URL", {"table": "s3://other/database", "where": "x=1"}, "table name"),
    _message("table encoded", {"table": "%2e%2e%2fusers", "where": "x=1"}, "table name"),
    _message("table the pointer", {"table": "../_latest_manifest", "keys": [1]}, "table name"),
    _message("table a number", {"table": 7, "where": "x=1"}, "table name 7"),
    _message("table null", {"table": None, "where": "x=1"}, "table name None"),
    _message("table a list", {"table": ["typed"], "where": "x=1"}, "table name ['typed']"),
    # what to delete
    _message("nothing to delete", {"table": "a"}, "'where' or 'keys'"),
    _message("where and keys", {"table": "a", "where": "x=1", "keys": [1]}, "'where' or 'keys'"),
    _message("where null", {"table": "a", "where": None}, "where: a predicate"),
    _message("where empty", {"table": "a", "where": ""}, "where"),
    _message("where blank", {"table": "a", "where": "  \n"}, "where"),
    _message("where an empty object", {"table": "a", "where": {}}, "where"),
    _message("where a list", {"table": "a", "where": ["x=1"]}, "not a list"),
    _message("where true", {"table": "a", "where": True}, "true or false"),
    _message("keys one value", {"table": "a", "keys": 1}, "keys"),
    _message("keys text", {"table": "a", "keys": "1,2"}, "keys"),
    _message("keys null", {"table": "a", "keys": None}, "keys"),
    _message("keys empty", {"table": "a", "keys": []}, "empty list"),
    _message("keys objects", {"table": "a", "keys": [{"id": 1}]}, "not objects"),
    _message("keys nested twice", {"table": "a", "keys": [[[1]]]}, "plain values"),
    _message("too many keys", {"table": "a", "keys": [0] * _MANY}, "1,000,001 keys", "LimitError"),
    _message("too many keys in all", {"tables": [{"table": t, "keys": [0] * 500_001} for t in ("a", "b")]}, "1,000,002 keys", "LimitError"),
    _message("on with where", {"table": "a", "where": "x=1", "on": ["x"]}, "'on'"),
    _message("on empty", {"table": "a", "keys": [1], "on": []}, "on"),
    _message("on numbers", {"table": "a", "keys": [1], "on": [1]}, "on"),
    _message("on an object", {"table": "a", "keys": [1], "on": {"id": 1}}, "on"),
    _message("unknown mode", {"table": "a", "where": "x=1", "mode": "hard"}, "mode 'hard'"),
    _message("mode a list", {"table": "a", "where": "x=1", "mode": ["positions"]}, "mode ['positions']"),
    _message("mode null", {"table": "a", "where": "x=1", "mode": None}, "mode None"),
    _message("keys by position", {"table": "a", "keys": [1], "mode": "positions"}, "where"),
    # several tables
    _message("tables text", {"tables": "a", "where": "x=1"}, "tables: a list"),
    _message("tables empty", {"tables": [], "where": "x=1"}, "tables: a list"),
    _message("tables null", {"tables": None, "where": "x=1"}, "tables: a list"),
    _message("tables mixed", {"tables": ["a", {"table": "b", "where": "x=1"}], "where": "x=1"}, "not both"),
    _message("tables numbers", {"tables": [1], "where": "x=1"}, "not both"),
    _message("a table twice", {"tables": ["a", "a"], "where": "x=1"}, "table 'a'"),
    _message("a table twice in objects", {"tables": [{"table": "a", "where": "x=1"}, {"table": "a", "keys": [1]}]}, "table 'a'"),
    _message("too many tables", {"tables": [f"t{n}" for n in range(101)], "where": "x=1"}, "101 tables", "LimitError"),
    _message("shared and own", {"tables": [{"table": "a", "where": "x=1"}], "where": "x=2"}, "'where'"),
    _message("unknown member of a table", {"tables": [{"table": "a", "where": "x=1", "id": 1}]}, "table 1: unknown member 'id'"),
    _message("a path among tables", {"tables": ["typed", "../users"], "where": "x=1"}, "table name '../users'"),
    # request ids
    _message("request id of one table", {"tables": [{"table": "a", "where": "x=1", "request_id": "r"}]}, "unknown member"),
    _message("request id empty", {"table": "a", "where": "x=1", "request_id": ""}, "printable"),
    _message("request id a number", {"table": "a", "where": "x=1", "request_id": 7}, "request_id: text"),
    _message("request id null", {"table": "a", "where": "x=1", "request_id": None}, "no request_id"),
    _message("request id too long", {"table": "a", "where": "x=1", "request_id": "r" * 257}, "256"),
    _message("request id with a newline", {"table": "a", "where": "x=1", "request_id": "a\nb"}, "printable"),
    _message("request id with NUL", {"table": "a", "where": "x=1", "request_id": "a\0"}, "printable"),
    _message("request id with an escape", {"table": "a", "where": "x=1", "request_id": "\x1b[2J"}, "printable"),
    _message("request id written right to left", {"table": "a", "where": "x=1", "request_id": "a\u202eb"}, "printable"),
    _message("request id of a file", {"table": "a", "where": "x=1", "request_id": "s3://b/k#e"}, "s3://"),
]  # fmt: skip

_APPLIED = [
    # tables and columns
    _where("no such table", "id = 1", "no table 'nowhere'", "TableNotFoundError", table="nowhere"),
    MalformedRequest("one table of two is missing", {"tables": ["typed", "nowhere"], "where": "id = 1"}, "no table 'nowhere'", "TableNotFoundError"),
    _where("no such column", "idd = 1", "idd"),
    _where("no such column of a mapping", {"idd": 1}, "idd"),
    _where("a column of another table", "users.id = 1", "name"),
    _where("a column that is a path", '"../id" = 1', "../id"),
    # more than a predicate
    _where("two statements", "id = 1; DROP TABLE typed", "unexpected"),
    _where("a statement", "DELETE FROM typed", ""),
    _where("a statement behind a comment", "id = 1 /* */; --\nDELETE FROM typed", ""),
    _where("a subquery", "id IN (SELECT id FROM typed)", "not supported"),
    _where("EXISTS", "EXISTS (SELECT 1)", "not supported"),
    _where("UNION", "id = 1 UNION SELECT 1", ""),
    _where("ORDER BY and LIMIT", "id = 1 ORDER BY id LIMIT 1", ""),
    _where("a function of a column", "reverse(kind) = 'a'", "not supported"),
    _where("a function that reads files", "kind = read_text('/etc/passwd')", "not supported"),
    _where("a table function", "id IN (SELECT * FROM read_csv('/etc/passwd'))", "not supported"),
    _where("an environment variable", "kind = getenv('AWS_SECRET_ACCESS_KEY')", "not supported"),
    _where("a setting", "kind = current_setting('s3_secret_access_key')", "not supported"),
    _where("random()", "score < random()", "not supported"),
    _where("a window", "row_number() OVER () = 1", "not supported"),
    _where("an aggregate", "max(id) = 1", "not supported"),
    _where("CASE", "CASE WHEN id = 1 THEN TRUE ELSE FALSE END", "not supported"),
    _where("a lambda", "list_filter(tags, x -> x = 'a') = 1", "not supported"),
    _where("a parameter", "id = $1", "not supported"),
    _where("a placeholder", "id = ?", "not supported"),
    _where("a star", "* = 1", ""),
    _where("a list", "id = ANY([1, 2])", "lists and structs"),
    _where("arithmetic with a column", "id // 2 = 1", "constants"),
    _where("a cast of a column", "CAST(kind AS BIGINT) = 1", "no cast"),
    # not SQL
    _where("not SQL", "id = = 1", "missing"),
    _where("an open parenthesis", "(id = 1", ""),
    _where("an open quote", "kind = 'a", "quote"),
    _where("an open comment", "id = 1 /* all", ""),
    _where("NUL in SQL", "id = 1\0", ""),
    _where("a comment alone", "-- all", "TRUE"),
    _where("no condition", "id + 1", "not supported"),
    _where("text as condition", "'yes'", "not a condition"),
    _where("zero", "id = 1 / 0", "zero"),
    _where("10,000 parentheses", "(" * 10_000 + "id = 1" + ")" * 10_000, "parentheses"),
    _where("10,000 NOT", "NOT " * 10_000 + "id = 1", "nested"),
    _where("10,000 minus signs", "id = " + "- " * 10_000 + "1", ""),
    _where("10,000 CASE", "CASE WHEN " * 10_000 + "TRUE", ""),
    _where("10,000 levels of AND without end", "id = 1 AND " * 10_000, ""),
    # values that do not fit
    _where("text for a number", {"id": "one"}, "one"),
    _where("text for a number in SQL", "id = 'one'", "one"),
    _where("a number for a text", {"kind": 7}, "kind"),
    _where("a date that does not exist", "born = '2024-02-30'", "2024-02-30"),
    _where("a leap second", "seen = '2016-12-31T23:59:60Z'", "23:59:60"),
    _where("a naive literal's offset on a date", "born = '2024-01-01T00:00:00+02:00'", ""),
    _where("a condition on a list", "tags = 'a'", "tags"),
    _where("a condition on a struct", "at = 'a'", "at"),
    _where("a field that a struct does not have", "at.missing = 1", ""),
    _where("LIKE on a number", "id LIKE '1%'", ""),
    _where("LIKE with a long ESCAPE", "kind LIKE 'a' ESCAPE 'ab'", ""),
    _where("an object as value", {"id": {"gt": 1}}, "compared"),
    _where("lists in a list as value", {"id": [[1]]}, "compared"),
    _where("an interval of nobody", "seen < now() - INTERVAL 3 fortnight", ""),
    _where("an interval without measure", "seen < now() - INTERVAL 99999999999999 YEAR", ""),
    _where("a DECIMAL of 99 digits", "paid = CAST(1 AS DECIMAL(99, 2))", "38"),
    _where("a cast to a list", "id = CAST('1' AS INT[])", ""),
    # keys
    _keys("a key of text for a number", ["one"], "", "InputError"),
    _keys("a key of true for a number", [True], "", "InputError"),
    _keys("a key of a fraction for a number", [1.5], "", "InputError"),
    _keys("a key beyond int64", [2**63], "", "InputError"),
    _keys("a key of 400 digits", [10**399], "", "InputError"),
    _keys("a key of text among numbers", [1, 2, "three"], "", "InputError"),
    _keys("a NULL key", [None], "", "RowError"),
    _keys("a NULL key among others", [1, None], "", "RowError"),
    _keys("a list for one column", [[1, 2]], "", "InputError"),
    _keys("too few columns in a key", [[1]], "tuple", "InputError", on=["id", "kind"]),
    _keys("too many columns in a key", [[1, "a", 2]], "tuple", "InputError", on=["id", "kind"]),
    _keys("a value for two columns", [1], "tuple", "InputError", on=["id", "kind"]),
    _keys("a key of two widths", [[1, "a"], [2]], "tuple", "InputError", on=["id", "kind"]),
    _keys("a key of an unknown column", [1], "idd", "SchemaError", on=["idd"]),
    _keys("a key of a column twice", [[1, 1]], "twice", "SchemaError", on=["id", "id"]),
    _keys("a key of floats", [1.5], "score", "SchemaError", on="score"),
    _keys("a key of lists", [1], "tags", "SchemaError", on=["tags"]),
    _keys("a key of structs", [1], "at", "SchemaError", on=["at"]),
    _keys("a key for a small number", [300], "", "InputError", on=["small"]),
    _keys("a key that is no date", ["2024-02-30"], "", "InputError", on=["born"]),
    MalformedRequest("a key of a large fraction for a number", '{"table": "typed", "keys": [123456789012345678.91]}', "", "InputError"),
    _keys("a key of too many digits", [1.005], "", "InputError", on=["paid"]),
    _keys("a key of a fraction for a date", [1.5], "", "InputError", on=["born"]),
    _keys("a key of a fraction for a time", [1.5], "", "InputError", on=["seen"]),
    MalformedRequest("keys without a primary key", {"table": "keyless", "keys": [1]}, "primary key", "InputError"),
]  # fmt: skip

MALFORMED_REQUESTS = _MESSAGES + _APPLIED
