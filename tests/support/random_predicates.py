"""Random predicates as SQL text, in the part of DuckDB's dialect that dolmen understands and gives the same meaning.

Literals are drawn from the table's own values and their neighbours, so that most predicates match some rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

Rng = random.Random

_OPERATORS = ("=", "<>", "!=", "<", "<=", ">", ">=")
_SOME_TEXT = ("a", "ä", "", "b", "%", "_", "ab", "A", "\n", "'")


def random_predicate(rng: Rng, table: pa.Table, depth: int | None = None) -> str:
    """A condition on some columns of ``table`` and fields of its structs; maps are left alone.

    Args:
        depth: maximum number of AND, OR and NOT above a comparison; random by default.
    """
    if depth is None:
        depth = rng.choice([0, 0, 1, 1, 2, 3])
    if depth == 0:
        return _leaf(rng, table)
    kind = rng.random()
    if kind < 0.2:
        return f"NOT ({random_predicate(rng, table, depth - 1)})"
    word = " AND " if kind < 0.55 else " OR "
    return word.join(f"({random_predicate(rng, table, rng.randint(0, depth - 1))})" for _ in range(rng.randint(2, 3)))


def quoted(name: str) -> str:
    """A column's name as an identifier."""
    return name if name.isidentifier() and name.isascii() else '"' + name.replace('"', '""') + '"'


def terms(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """The columns without children, and the fields of structs, by their names in SQL."""
    found: dict[str, pa.ChunkedArray] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_struct(field.type):
            inner = pa.table(column.combine_chunks().flatten(), schema=pa.schema(list(field.type)))
            found |= {f"{quoted(field.name)}.{name}": array for name, array in terms(inner).items()}
        elif not pa.types.is_nested(field.type):
            found[quoted(field.name)] = column
    return found


def _lists(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """The elements of the columns that are lists, by their names in SQL."""
    pairs = zip(table.schema, table.columns, strict=True)
    return {quoted(field.name): pc.list_flatten(column) for field, column in pairs if pa.types.is_list(field.type)}


def _leaf(rng: Rng, table: pa.Table) -> str:
    columns, lists = terms(table), _lists(table)
    if lists and (not columns or rng.random() < 0.1):
        name = rng.choice(list(lists))
        return f"list_contains({name}, {_literal(rng, lists[name])})"
    plain = rng.choice(list(columns))
    column = columns[plain]
    name = plain.upper() if rng.random() < 0.3 and plain.isascii() else plain

    def literal() -> str:
        return _literal(rng, column)

    if rng.random() < 0.12:
        return _computed(rng, name, column.type, literal)
    if rng.random() < 0.01:
        return rng.choice(["TRUE", "FALSE", "NULL", f"{name} IN (NULL)"])
    if pa.types.is_boolean(column.type) and rng.random() < 0.5:
        return rng.choice([name, f"NOT {name}", f"{name} IS TRUE", f"{name} IS NOT FALSE", f"{name} = TRUE"])
    if pa.types.is_string(column.type) and rng.random() < 0.4:
        return _like(rng, name, column)
    forms: list[tuple[float, Callable[[], str]]] = [
        (8, lambda: f"{name} {rng.choice(_OPERATORS)} {literal()}"),
        (1, lambda: f"{literal()} {rng.choice(_OPERATORS)} {name}"),
        (2, lambda: f"{name} {rng.choice(['', 'NOT '])}BETWEEN {literal()} AND {literal()}"),
        (3, lambda: f"{name} {rng.choice(['', 'NOT '])}IN ({_list(rng, literal)})"),
        (1, lambda: f"{name} IS {rng.choice(['', 'NOT '])}NULL"),
        (1, lambda: f"{name} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {literal()}"),
        (0.5, lambda: _tuples(rng, columns)),
    ]
    others = [other for other in columns if other != plain and _comparable(column.type, columns[other].type)]
    if others:
        operator = rng.choice([*_OPERATORS, "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
        forms.append((3, lambda: f"{name} {operator} {rng.choice(others)}"))
    weights, makers = zip(*forms, strict=True)
    make: Callable[[], str] = rng.choices(makers, weights)[0]
    return make()


def _computed(rng: Rng, name: str, arrow_type: pa.DataType, literal: Callable[[], str]) -> str:
    """A comparison of a value computed from a column."""
    operator, small = rng.choice(_OPERATORS), rng.choice([-3, -1, 1, 2, 3, 10])
    t = pa.types
    if t.is_integer(arrow_type):
        remainder = f"{name} % {small} {operator} {rng.randint(-2, 2)}"
        forms = [
            f"{name} + {small} {operator} {literal()}",
            f"{name} * 2 - 1 IN ({rng.randint(-5, 5)}, {rng.randint(-5, 5)}, {literal()})",
            f"{name} / {small} {operator} {rng.randint(-3, 3)}.5",
            f"{small} - {name} BETWEEN -5 AND 5",
            f"CAST({name} AS DOUBLE) {operator} {literal()}",
            f"TRY_CAST({name} AS {rng.choice(['TINYINT', 'UINTEGER', 'DECIMAL(4, 1)'])}) {operator} 3",
            f"TRY_CAST({name} AS TINYINT) IS {rng.choice(['', 'NOT '])}NULL",
            f"{name}::VARCHAR {operator} '{rng.randint(-20, 20)}'",
            f"(-{name}) {operator} {small}",
            f"coalesce({name}, {small}) {operator} {literal()}",
        ]
        if not t.is_signed_integer(arrow_type) or arrow_type.bit_width < 64:  # DuckDB's overflows at the least value
            forms.append(f"abs({name} + 0.5) {operator} 3.5")
        return rng.choice(forms if arrow_type == pa.uint64() else [*forms, remainder, remainder])
    if t.is_decimal(arrow_type) and arrow_type.precision <= 15:
        forms = [f"{name} * 2 {operator} {literal()}", f"{name} - 0.5 {operator} {literal()}", f"{name} / 4 > 0.25"]
        return rng.choice(
            [*forms, f"abs({name}) {operator} {literal()}", f"coalesce({name}, 1.5) {operator} {literal()}"]
        )
    if t.is_floating(arrow_type):
        forms = [f"{name} * 0.5 {operator} {literal()}", f"{name} + 1 {operator} {literal()}", f"{name} / 0 = 'nan'"]
        forms += [
            f"isnan({name})",
            f"abs({name}) {operator} {literal()}",
            f"coalesce({name}, 'nan') {operator} {literal()}",
        ]
        return rng.choice([*forms, f"-{name} {operator} {literal()}", f"{name}::DOUBLE {operator} {literal()}"])
    if t.is_string(arrow_type):
        function = rng.choice(["lower", "upper"])
        text = literal()
        if rng.random() < 0.6:
            looked_for = _text(text[1:-1].replace("''", "'")[: rng.randint(0, 3)])
            test = rng.choice(["starts_with", "ends_with", "contains"])
            return rng.choice(
                [
                    f"length({name}) {operator} {rng.randint(0, 4)}",
                    f"coalesce({name}, {text}) {operator} {literal()}",
                    f"{test}({name}, {looked_for})",
                    f"{test}({function}({name}), {looked_for})",
                ]
            )
        forms = [f"= {text}", f"LIKE {text[:-1]}%'", f"IN ({text}, '', 'ab', 'AB')", f"= {function}({name})", "IS NULL"]
        return f"{function}({name}) {rng.choice(forms)}"
    if t.is_date(arrow_type) or t.is_timestamp(arrow_type):
        if rng.random() < 0.4:
            span = f"INTERVAL '{rng.randint(-14, 14)} months {rng.randint(-40, 40)} days {rng.randint(-5, 5)} hours'"
            moved = f"{name} {rng.choice('+-')} {span}"
            return rng.choice([f"{moved} {operator} {name}", f"year({moved}) {operator} 2001", f"{moved} IS NULL"])
        day = "" if t.is_date(arrow_type) else f"CAST({name} AS DATE) {operator} DATE '2001-09-09'"
        forms = [f"year({name}) {operator} 2001", f"month({name}) {operator} 6", f"day({name}) {operator} 15"]
        return rng.choice([*forms, day or forms[0], f"extract(month FROM {name}) IN (1, 2, 12)"])
    return f"{name} IS NOT NULL"


def _list(rng: Rng, literal: Callable[[], str]) -> str:
    members = [literal() for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.15:
        members.append("NULL")
    return ", ".join(members)


def _tuples(rng: Rng, columns: Mapping[str, pa.ChunkedArray]) -> str:
    # Within tuples DuckDB compares texts as texts, whatever the column's type.
    names = [
        name for name, column in columns.items() if not pa.types.is_temporal(column.type) and not _is_bytes(column.type)
    ] or list(columns)[:1]
    names = rng.sample(names, min(2, len(names)))
    if len(names) < 2:
        return f"{names[0]} IS NOT NULL"
    row = rng.randrange(max(1, len(columns[names[0]])))
    rows = ", ".join(
        f"({', '.join(_literal(rng, columns[name], row) for name in names)})" for _ in range(rng.randint(1, 3))
    )
    return f"({', '.join(names)}) IN ({rows})"


def _is_bytes(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(arrow_type) or pa.types.is_fixed_size_binary(arrow_type))


def _comparable(a: pa.DataType, b: pa.DataType) -> bool:
    t = pa.types

    def family(arrow_type: pa.DataType) -> str:
        if t.is_integer(arrow_type) or t.is_floating(arrow_type) or t.is_decimal(arrow_type):
            return "number"
        if _is_bytes(arrow_type):
            return "bytes"
        return "day or naive" if t.is_date(arrow_type) or arrow_type == pa.timestamp("us") else str(arrow_type)

    # Beyond 15 digits DuckDB's way from decimals to floats is not the nearest one.
    wide = {t.is_decimal(x) and x.precision > 15 for x in (a, b)}
    if True in wide and (t.is_floating(a) or t.is_floating(b)):
        return False
    return not t.is_nested(a) and not t.is_nested(b) and family(a) == family(b)


def _like(rng: Rng, name: str, column: pa.ChunkedArray) -> str:
    known = [text for text in column.to_pylist() if text] or ["a"]
    text = rng.choice(known)
    pieces = [rng.choice(["%", "_", "", text[:1], text[1:3], text, rng.choice(_SOME_TEXT)]) for _ in range(3)]
    if rng.random() < 0.5:
        pieces.append("%")
    word = rng.choice(["LIKE", "LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"])
    escape = ""
    if rng.random() < 0.3:
        sign = rng.choice("!\\#")
        pieces = [piece.replace(sign, sign * 2) for piece in pieces]
        pieces.insert(rng.randint(0, len(pieces)), sign + rng.choice("%_" + sign))
        escape = f" ESCAPE '{sign}'"
    return f"{name} {word} {_text(''.join(pieces))}{escape}"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _literal(rng: Rng, column: pa.ChunkedArray, row: int | None = None) -> str:
    """A literal to compare a column with: one of its values (that of ``row``), or one near it."""
    arrow_type = column.type
    t = pa.types
    if t.is_temporal(arrow_type):
        column = column.cast(pa.int32() if t.is_date(arrow_type) else pa.int64())
    known = [value for value in (column if row is None else column.slice(row, 1)).to_pylist() if value is not None]
    value = rng.choice(known) if known else None
    if t.is_boolean(arrow_type):
        return rng.choice(["TRUE", "FALSE"])
    if t.is_integer(arrow_type):
        return _number(rng, value if value is not None else rng.randint(-3, 3), row is None)
    if t.is_decimal(arrow_type):
        return _decimal(rng, Decimal(1) if value is None else value, arrow_type, row is None)
    if t.is_floating(arrow_type):
        return _float(rng, 0.0 if value is None else value, arrow_type)
    if t.is_string(arrow_type):
        return _text(value if value is not None and rng.random() < 0.8 else rng.choice(_SOME_TEXT))
    if _is_bytes(arrow_type):
        value = value if value is not None and rng.random() < 0.8 else rng.choice([b"", b"aa", b"\xfe"])
        return "'" + "".join(f"\\x{byte:02x}" for byte in value) + rng.choice(["'", "'::BLOB"])
    return _temporal(rng, value if value is not None else 0, arrow_type)


def _number(rng: Rng, value: int, vary: bool) -> str:
    kind = rng.random() if vary else 0.0
    if kind < 0.5:
        return str(value)
    if kind < 0.7:
        return rng.choice([f"{value} + 1", f"{value} - 1", f"(3 * {value})"]) if abs(value) < 30 else str(value)
    if kind < 0.8:
        return f"{value}.5" if abs(value) < 2**60 else f"{value}.0"
    if kind < 0.85:
        return rng.choice(["300", "-1", "70000", "5000000000", "18446744073709551615", "20000000000000000000"])
    if kind < 0.95:
        return f"{value / 2!r}e0" if abs(value) < 1e6 else f"{float(value):e}"
    return f"{value}::FLOAT" if abs(value) < 100 else f"CAST({value} AS DOUBLE)"


def _decimal(rng: Rng, value: Decimal, arrow_type: pa.DataType, vary: bool) -> str:
    kind = rng.random() if vary else 0.0
    if kind < 0.6:
        return f"{value:f}"
    if kind < 0.8:
        return str(int(value))
    if kind < 0.9 or arrow_type.precision > 15:
        return f"{value:f}" + ("5" if "." in f"{value:f}" else ".5")
    return f"{float(value)!r}e0" if abs(value) < 1e6 else f"{float(value):e}"


def _float(rng: Rng, value: float, arrow_type: pa.DataType) -> str:
    name = "FLOAT" if arrow_type == pa.float32() else "DOUBLE"
    if value != value or value in (float("inf"), float("-inf")):
        return rng.choice([f"'{value}'::{name}", f"'{value}'::DOUBLE", f"'{value}'"])
    kind = rng.random()
    if kind < 0.5:
        return f"CAST({value:.17e} AS {name})"
    if kind < 0.7:
        return f"{value:.8e}"
    if kind < 0.9 and abs(value) < 1e10 and (value == 0 or abs(value) > 1e-3):
        return f"{Decimal(repr(round(value, 4))):f}"
    return str(rng.randint(-3, 3))


def _temporal(rng: Rng, value: int, arrow_type: pa.DataType) -> str:
    if pa.types.is_time(arrow_type):
        seconds, fraction = divmod(value, 1_000_000)
        text = f"'{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}'"
        return rng.choice(["TIME ", ""]) + text
    if pa.types.is_date(arrow_type):
        moment = (value + rng.choice([0, 0, 0, 1, -1])) * 86_400_000_000
    else:
        moment = value + rng.choice([0, 0, 0, 1, -1, 86_400_000_000])
    days, time = divmod(moment, 86_400_000_000)
    day = (date(1970, 1, 1) + timedelta(days)).isoformat() if -700_000 < days < 2_900_000 else "9999-12-31"
    clock = f"{time // 3_600_000_000:02}:{time // 60_000_000 % 60:02}:{time // 1_000_000 % 60:02}.{time % 1_000_000:06}"
    if pa.types.is_date(arrow_type):
        return rng.choice(
            [
                f"DATE '{day}'",
                f"'{day}'",
                f"DATE '{day}' + 1",
                f"TIMESTAMP '{day} {clock}'",
                f"DATE '{day}' - INTERVAL 1 DAY",
            ]
        )
    if arrow_type.tz:
        return rng.choice(
            [f"'{day} {clock}'", f"TIMESTAMPTZ '{day} {clock}+00'", f"'{day}T{clock}Z'", f"'{day} {clock}+00:00'",
             f"DATE '{day}'", f"TIMESTAMPTZ '{day} {clock}+00' + INTERVAL 1 MONTH"]
        )  # fmt: skip
    return rng.choice(
        [
            f"'{day} {clock}'",
            f"TIMESTAMP '{day} {clock}'",
            f"DATE '{day}'",
            f"TIMESTAMP '{day} {clock}' - INTERVAL '2' HOUR",
        ]
    )
