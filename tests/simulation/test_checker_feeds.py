"""The judge says what is wrong with a change feed that tells of other rows than the versions have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.replica import FedRow, TableCopy, fed_rows, follow_feed
from simulation.judged import World

Fed = list[FedRow]


def feed(world: World, *, net: bool = False) -> tuple[TableCopy, Fed]:
    """A copy of the newest version, and what the feed tells of two commits after it."""
    ledger = world.ledger
    since, table = ledger.version, ledger.states[-1]["left"]
    copy = TableCopy(table.identity, since, table.rows)
    world.append(8)
    world.delete(1)
    return copy, fed_rows(world.db.table("left").changes(since, net=net))


@pytest.mark.parametrize("net", [False, True])
def test_a_right_feed_is_followed(world: World, net: bool) -> None:
    copy, fed = feed(world, net=net)
    now = follow_feed(world.ledger, copy, world.ledger.version, fed, net=net)
    assert set(now.rows) == set(world.ledger.states[-1]["left"].rows)


FORGERIES: tuple[tuple[str, Callable[[Fed], Fed]], ...] = (
    ("should not be there", lambda fed: fed[:-1]),
    ("missing", lambda fed: fed[1:]),
    ("not there", lambda fed: [*fed, fed[-1]]),
    ("more than once", lambda fed: [*fed, fed[-1]._replace(change="insert"), fed[-1]]),
    ("versions", lambda fed: [fed[0]._replace(version=1), *fed[1:]]),
    ("missing", lambda fed: [row._replace(version=fed[-1].version) for row in fed]),
    ("not by its commit", lambda fed: [fed[0]._replace(commit_ts=1), *fed[1:]]),
    ("pairs updates", lambda fed: [fed[0]._replace(change="update_after"), *fed[1:]]),
)


@pytest.mark.parametrize(("words", "forge"), FORGERIES)
def test_a_wrong_feed_is_found(world: World, words: str, forge: Callable[[Fed], Fed]) -> None:
    copy, fed = feed(world)
    with pytest.raises(ViolationError, match=words) as caught:
        follow_feed(world.ledger, copy, world.ledger.version, forge(fed))
    assert caught.value.never is Never.MISFED
