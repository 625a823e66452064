"""Violations that the enumeration finds in wrong calls, and their reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dolmen.base.records import replace
from dolmen.errors import StoreUnavailableError
from dolmen_simulator.interleavings.checks import Pair, arrow, rows_of
from dolmen_simulator.interleavings.enumeration import Enumeration, ExecutionError
from dolmen_simulator.interleavings.execution import Peer
from dolmen_simulator.interleavings.registry import PAIRS
from dolmen_simulator.judge.never import Never


def commits_and_says_that_it_failed(peer: Peer) -> None:
    peer.db.table("t").append(arrow([(4, 40, None)]))
    raise StoreUnavailableError("nothing was changed")


def says_that_it_committed(peer: Peer) -> None:
    peer.db.table("t").count()


def appends_twice(peer: Peer) -> None:
    for _ in range(2):
        peer.db.table("t").append(arrow([(4, 40, None)]))


def puts_a_deleted_row_back(peer: Peer) -> None:
    before = peer.db.table("t").to_arrow()
    peer.db.table("t").append(arrow([(4, 40, None)]))
    peer.db.table("t").overwrite(pa.concat_tables([before, arrow([(4, 40, None)])]), force=True)


def reads_two_tables_one_after_the_other(peer: Peer) -> Any:
    return {name: rows_of(peer.db.table(name).to_arrow()) for name in ("t", "u")}


def reads_and_writes_apart(peer: Peer) -> Any:
    [old] = peer.db.table("t").scan(where={"k": 1}).to_arrow()["v"].to_pylist()
    peer.db.table("t").upsert(arrow([(1, old + 1, None)]))
    return old


def appends_what_was_applied(peer: Peer) -> dict[str, str]:
    peer.db.table("t").append(arrow([(100 + ord(id_), 0, None) for id_ in "ab"]))
    return {"a": "applied", "b": "applied"}


def deletes_an_object(peer: Peer) -> None:
    peer.db.table("t").append(arrow([(4, 40, None)]))
    [key] = [info.key for info in peer.store.list("data/")][:1]
    peer.store.delete([key])


@pytest.mark.parametrize(
    ("name", "task", "never"),
    [
        ("append/append", commits_and_says_that_it_failed, Never.MISREPORTED),
        ("append/append", says_that_it_committed, Never.MISREPORTED),
        ("append/append", appends_twice, Never.LOST),
        ("append/append", deletes_an_object, Never.COLLECTED),
        ("append/delete", puts_a_deleted_row_back, Never.REVIVED),
        ("read-modify-write/read-modify-write", reads_and_writes_apart, Never.HALF),
        ("redelivery/redelivery", appends_what_was_applied, Never.TWICE),
    ],
)
def test_a_wrong_call_is_found_and_named(name: str, task: Callable[[Peer], Any], never: Never) -> None:
    found = first_wrong(PAIRS[name], 0, task)
    assert found.violation.never is never
    assert str(found).startswith(f"violation: {never.name.lower()}: ")


def test_a_read_of_two_tables_that_is_not_one_is_found_in_the_one_order_that_shows_it() -> None:
    found = first_wrong(PAIRS["transaction/reader"], 1, reads_two_tables_one_after_the_other)
    assert found.violation.never is Never.HALF
    first = found.choices.index(1)
    assert 0 in found.choices[first:], "the writer came in between"


def test_what_was_found_is_found_again_by_its_choices_and_its_fault() -> None:
    wrong = replaced(PAIRS["append/append"], 0, commits_and_says_that_it_failed)
    with pytest.raises(ExecutionError) as found:
        Enumeration(wrong).run()
    with pytest.raises(ExecutionError) as again:
        Enumeration(wrong).replay(found.value.choices, found.value.fault)
    assert str(again.value) == str(found.value)
    assert f"--choices {','.join(map(str, found.value.choices))}" in found.value.command


def first_wrong(pair: Pair, place: int, task: Callable[[Peer], Any]) -> ExecutionError:
    with pytest.raises(ExecutionError) as found:
        Enumeration(replaced(pair, place, task), quick=True).run()
    return found.value


def replaced(pair: Pair, place: int, task: Callable[[Peer], Any]) -> Pair:
    calls = list(pair.calls)
    calls[place] = replace(calls[place], task=task)
    return replace(pair, calls=(calls[0], calls[1]))
