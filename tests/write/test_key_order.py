"""The order of keys is that of pyarrow, however they were sorted, and equal ones stay in their order."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dolmen.format import del_object
from dolmen.format.del_object import distinct_keys, last_of_equals, order_of

SEED = os.environ["DOLMEN_TEST_SEED"]


def uuids(rng: random.Random) -> str:
    return f"{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}"


def of_few(rng: random.Random) -> str:
    return f"user-{rng.randrange(50)}"


def with_a_long_beginning(rng: random.Random) -> str:
    return f"https://example.com/{rng.choice('ab')}/{'x' * rng.randrange(12)}{rng.randrange(9)}"


def short(rng: random.Random) -> str:
    return "".join(rng.choices("a\0é\uffff😀", k=rng.randrange(5)))


def equal(rng: random.Random) -> str:
    return "the same"


def empty(rng: random.Random) -> str:
    return ""


@pytest.fixture(autouse=True)
def every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(del_object, "_MANY", 0)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize("draw", [uuids, of_few, with_a_long_beginning, short, equal, empty])
def test_texts_stand_in_the_order_of_pyarrow(draw: Callable[[random.Random], str], kind: pa.DataType) -> None:
    rng = random.Random(f"{SEED} {draw.__name__}")
    for _ in range(30):
        texts = [draw(rng) for _ in range(rng.randrange(1, 300))]
        values = pa.array(texts, pa.string()).cast(kind)
        begin = rng.randrange(len(values))
        cut = rng.randrange(begin, len(values))
        for column in (values, values[begin:], pa.chunked_array([values[begin:cut], values[cut:], values[:begin]])):
            delete_object = pa.table({"1": column})
            expected = pc.sort_indices(delete_object, sort_keys=[("1", "ascending")]).to_pylist()
            assert order_of(delete_object).tolist() == expected


def test_without_keys_none_is_distinct() -> None:
    delete_object, places = distinct_keys(pa.table({"1": pa.array([], pa.string())}))
    assert (delete_object.num_rows, len(places)) == (0, 0)


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array([3, 1, 3, 2, 1])],
        [pa.array(["b", "a", "b", "", "a"])],
        [pa.array([1, 1, 1, 1, 1]), pa.array(["x", "y", "x", "x", "y"])],
        [pa.array([True, False, True, True, False]), pa.array([b"\0", b"", b"\0", b"", b""])],
    ],
)
def test_of_equal_keys_the_last_is_found(columns: list[pa.Array]) -> None:
    delete_object, places = distinct_keys(pa.table(columns, names=[str(id_) for id_ in range(len(columns))]))
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    last = {row: place for place, row in enumerate(rows)}
    assert [tuple(row.values()) for row in delete_object.to_pylist()] == sorted(last)
    assert places.tolist() == [last[row] for row in sorted(last)]


def test_keys_in_chunks_are_compared_over_their_ends() -> None:
    delete_object = pa.table({"1": pa.chunked_array([["a", "b"], ["b"], ["b", "c"]])})
    assert last_of_equals(delete_object).tolist() == [True, False, False, True, True]


def test_as_many_uuids_as_an_upsert_takes_are_sorted_without_a_comparison_of_each_two() -> None:
    values = pa.array(np.random.default_rng(1).integers(0, 1 << 60, 20_000).astype(str))
    assert order_of(pa.table({"1": values})).tolist() == pc.sort_indices(values).to_pylist()
