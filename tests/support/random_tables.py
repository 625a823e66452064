"""Random tables of every stored type, with values that are known to cause trouble."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

Rng = random.Random

DAY_US = 86_400_000_000
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_TEXTS = [
    "", "a", "A", "ab", "aB", "b", "ä", "Ä", "z", "%", "_", "a%", "\\", "a\nb", "a'b", "ß", "ẞ", "日本", "🙂",
    "e\u0301", "\uffff", "\U0010ffff", "a" * 20, "a" * 20 + "b", "日" * 17, "\uffff" * 17, "0", "TRUE", " a ", "İ", "ſ",
]  # fmt: skip
_FLOATS = [
    float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 0.1, -0.1, 1.0, 1.5, 2.0, -1.0, 3.0, 16777216.0, 16777217.0,
    2.0**53, 1e-300, 1e300, 1e20, 5e-324,
]  # fmt: skip


def _integer(name: str) -> Callable[[Rng], int]:
    bits = int(name.lstrip("uint"))
    low, high = (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    edges = [low, low + 1, high - 1, high, *(v for v in (2**24 + 1, 2**32 + 5, 2**53, 2**53 + 1) if v <= high)]

    def draw(rng: Rng) -> int:
        return rng.choice(edges) if rng.random() < 0.2 else rng.randint(max(low, -4), 4)

    return draw


def _decimal(precision: int, scale: int) -> Callable[[Rng], Decimal]:
    def draw(rng: Rng) -> Decimal:
        limit = 10 ** min(precision, 14) - 1
        raw = rng.choice([-limit, limit, 10**scale, 10**scale // 10]) if rng.random() < 0.2 else rng.randint(-40, 40)
        return Decimal(raw).scaleb(-scale)

    return draw


def _float(rng: Rng) -> float:
    return rng.choice(_FLOATS) if rng.random() < 0.5 else float(rng.randint(-8, 8)) / 4


def _text(rng: Rng) -> str:
    return rng.choice(_TEXTS) if rng.random() < 0.6 else "".join(rng.choice("abä%") for _ in range(rng.randint(0, 3)))


def _bytes(rng: Rng) -> bytes:
    return rng.choice([b"", b"a", b"ab", b"\x00", b"\xff", b"\xff\xff", b"'\\", b"\xff" * 20, b"a" * 17])


def _instant(rng: Rng) -> int:
    days = rng.choice([0, -1, 1, 19_700, 19_723, 20_000, -300_000, 3_000_000])
    return days * DAY_US + rng.choice([0, 0, 1, -1, 1_000_000, 3_600_000_000])


def _list(rng: Rng) -> list[int | None]:
    return [rng.choice([None, 0, 1]) for _ in range(rng.randint(0, 3))]


def _deep(rng: Rng) -> dict[str, Any]:
    inner = {
        "n": rng.choice([None, -128, 0, 3, 127]),
        "x.y": rng.choice([None, *_TEXTS]),
        "on": rng.choice([None, True]),
    }
    return {"f": rng.choice([None, *_FLOATS[:12]]), "geo": rng.choice([None, inner, inner])}


def _struct(rng: Rng) -> dict[str, Any]:
    return {"x": rng.choice([None, 1, 2]), "y": rng.choice([None, "", "a"])}


TYPES: dict[str, tuple[pa.DataType, Callable[[Rng], Any]]] = {
    "bool": (pa.bool_(), lambda rng: rng.random() < 0.5),
    **{name: (pa.type_for_alias(name), _integer(name)) for name in _INTEGERS},
    "float32": (pa.float32(), _float),
    "float64": (pa.float64(), _float),
    "decimal_9_2": (pa.decimal128(9, 2), _decimal(9, 2)),
    "decimal_18_4": (pa.decimal128(18, 4), _decimal(18, 4)),
    "decimal_38_10": (pa.decimal128(38, 10), _decimal(38, 10)),
    "string": (pa.string(), _text),
    "binary": (pa.binary(), _bytes),
    "fixed_binary": (pa.binary(2), lambda rng: rng.choice([b"aa", b"ab", b"\x00\x00", b"\xff\xff"])),
    "date": (pa.date32(), lambda rng: rng.choice([-1, 0, 1, 19_700, 19_723, 20_000, -300_000, 3_000_000])),
    "time": (pa.time64("us"), lambda rng: rng.choice([0, 1, 1_000_000, 36_000_000_000, DAY_US - 1])),
    "naive": (pa.timestamp("us"), _instant),
    "zoned": (pa.timestamp("us", tz="UTC"), _instant),
    "list": (pa.list_(pa.int64()), _list),
    "struct": (pa.struct([("x", pa.int64()), ("y", pa.string())]), _struct),
}
"""By name: the Arrow type, and how to draw a value (temporal ones as integers)."""

_DEEP: dict[str, tuple[pa.DataType, Callable[[Rng], Any]]] = {
    "deep": (
        pa.struct(
            [
                ("f", pa.float32()),
                ("geo", pa.struct([("n", pa.int8()), ("x.y", pa.string()), ("on", pa.bool_())])),
            ]
        ),
        _deep,
    ),
}
STRUCTS = ("struct", *_DEEP)
LISTS: dict[str, tuple[pa.DataType, Callable[[Rng], Any]]] = {
    f"list_of_{name}": (
        pa.list_(element),
        lambda rng, draw=draw: [rng.choice([None, draw(rng), draw(rng)]) for _ in range(rng.randint(0, 3))],  # type: ignore[misc]
    )
    for name, (element, draw) in TYPES.items()
    if not pa.types.is_nested(element)
}
"""Lists of each type."""
ALL: tuple[str, ...] = tuple(TYPES)
FLAT: tuple[str, ...] = tuple(name for name in ALL if name not in ("list", "struct"))
_PREFIXES = ("", "x_", "My ", "order-", "ä")


def random_column(rng: Rng, kind: str, rows: int) -> pa.Array:
    """One column: mostly mixed, sometimes constant, all NULL, or without NULL."""
    arrow_type, draw = (TYPES | _DEEP | LISTS)[kind]
    nulls = rng.choice([0.0, 0.1, 0.1, 0.4, 1.0 if rng.random() < 0.2 else 0.2])
    pool = [draw(rng) for _ in range(1 if rng.random() < 0.1 else rng.randint(2, 12))]
    values = [None if rng.random() < nulls else rng.choice(pool) for _ in range(rows)]
    if pa.types.is_temporal(arrow_type):
        return pa.array(values, pa.int32() if arrow_type.bit_width == 32 else pa.int64()).view(arrow_type)
    return pa.array(values, arrow_type)


def random_table(rng: Rng, rows: int, types: Sequence[str] = ALL) -> pa.Table:
    """A table of some of ``types``, some of them twice (so that columns can be compared), under plain and odd names.

    Args:
        types: names of ``TYPES``.
    """
    kinds = rng.sample(list(types), min(len(types), rng.randint(3, 8)))
    kinds += [rng.choice(kinds) for _ in range(rng.randint(0, 3))]
    columns: dict[str, pa.Array] = {}
    for place, kind in enumerate(kinds):
        name = f"{rng.choice(_PREFIXES)}{kind}_{place}"
        columns[name] = random_column(rng, kind, rows)
    return pa.table(columns)
