"""The judge knows when an insert must be refused, and with which keys."""

from __future__ import annotations

import pytest

from dolmen.errors import DuplicateKeyError
from dolmen_simulator.judge.inserting import InsertEffect, is_duplicate
from dolmen_simulator.judge.model import DeleteEffect, Row, State, TableRows
from dolmen_simulator.judge.never import Never, ViolationError


def state(*keys: int) -> State:
    return {"t": TableRows(1, tuple(Row(k, 0, 100 + k) for k in keys), 0, {})}


def refusal(*keys: int, in_rows: bool = False) -> DuplicateKeyError:
    return DuplicateKeyError("t", ["k"], [(key,) for key in keys], len(keys), in_rows=in_rows)


INSERT = InsertEffect("t", (Row(1, 0, 1), Row(2, 0, 2)))


def test_an_insert_of_a_key_that_is_there_is_a_double() -> None:
    with pytest.raises(ViolationError) as caught:
        INSERT.apply(state(2, 3), state(), 7)
    assert caught.value.never is Never.DOUBLED
    model = state(3)
    INSERT.apply(model, state(3), 7)
    assert [row.k for row in model["t"].rows] == [3, 1, 2]


def test_a_refusal_names_just_the_keys_of_one_version() -> None:
    assert is_duplicate(refusal(2), [INSERT], [state(3), state(2, 3)])
    assert is_duplicate(refusal(1, 2), [INSERT], [state(1, 2)])
    assert not is_duplicate(refusal(2), [INSERT], [state(3), state(1, 2)])
    assert not is_duplicate(refusal(3), [INSERT], [state(3)])
    assert not is_duplicate(refusal(2), [INSERT], [])


def test_what_the_transaction_deletes_before_is_no_reason() -> None:
    first = DeleteEffect("t", lambda row: row.k == 2)
    assert not is_duplicate(refusal(2), [first, INSERT], [state(2)])
    assert is_duplicate(refusal(1), [first, INSERT], [state(1, 2)])


def test_rows_that_have_one_key_are_a_reason() -> None:
    twice = InsertEffect("t", (Row(1, 0, 1), Row(1, 0, 2), Row(2, 0, 3)))
    assert is_duplicate(refusal(1, in_rows=True), [twice], [])
    assert not is_duplicate(refusal(1, in_rows=True), [INSERT], [])
