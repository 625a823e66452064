"""Histories of the simulation, with their faults, are strictly serializable by the judgement of porcupine, too."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

from dolmen_simulator.judge.isolation import History, Read
from dolmen_simulator.judge.isolation import RecordedTransaction as SimulatedTransaction
from dolmen_simulator.simulation import simulate
from support.porcupine import RecordedTransaction, Step, find_porcupine, judge

LONG = bool(os.environ.get("DOLMEN_LONG"))
SEED = int(os.environ["DOLMEN_TEST_SEED"])
FIXED = 20_260_101
SEEDS = [*range(FIXED, FIXED + 100), *range(SEED, SEED + 100)] if LONG else [FIXED, FIXED + 1, SEED]
STEPS = 4_000 if LONG else 1_500


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", range(len(SEEDS)))
def test_a_simulated_history_is_strictly_serializable(place: int) -> None:
    if find_porcupine()[0] is None:
        pytest.skip(find_porcupine()[1])
    histories: list[History] = []
    simulate(SEEDS[place], STEPS, take_history=histories.append)
    history = as_recorded(histories[0])
    if SEEDS[place] in (FIXED, FIXED + 1):  # how much a drawn history reads is luck
        assert any(kind in ("r", "all") for each in history for kind, _, _ in each.steps)
    assert judge(history) == ("serializable", []), f"seed {SEEDS[place]}"


def as_recorded(history: History) -> list[RecordedTransaction]:
    """The history as porcupine takes it: a key for each row, ``table/key/number``.

    What a version changed is known from the version itself, and when it took effect from the store: as it landed.
    Transactions that committed nothing may have seen an old version, unless they asked for the newest. Reads of older
    versions by number are left out, since erasures take rows out of those.
    """
    keys = {row: lives[0].key for row, lives in history.lives.items()}
    changes: dict[int, list[Step]] = defaultdict(list)
    for row, lives in history.lives.items():
        for life in lives:
            changes[life.added_in].append(("w", f"{life.table}/{life.key}/{row}", 1))
            if life.removed_in is not None:
                changes[life.removed_in].insert(0, ("w", f"{life.table}/{life.key}/{row}", None))
    by_version: dict[int, list[SimulatedTransaction]] = defaultdict(list)  # threads commit together
    for each in history.transactions:
        if each.landed_version is not None:
            by_version[each.landed_version].append(each)
    recorded: list[RecordedTransaction] = []
    for version, steps in changes.items():
        landed_us, what = history.landings[version - 1]
        own = by_version.get(version, [])
        reads = [_step(read, keys) for each in own for read in each.reads]
        session = own[0].session if own else what
        recorded.append(RecordedTransaction(session, landed_us, landed_us, [*reads, *steps]))
    committed = {id(each) for group in by_version.values() for each in group}
    recorded += [
        RecordedTransaction(
            each.session, each.began_us, each.ended_us, [_step(read, keys) for read in each.reads], not each.fresh
        )
        for each in history.transactions
        if each.reads and each.at is None and id(each) not in committed
    ]
    return sorted(recorded, key=lambda each: each.call_ns)


def _step(read: Read, keys: dict[int, int]) -> Step:
    if read.key is not None:
        return "all", f"{read.table}/{read.key}/", {str(row): 1 for row in read.rows}
    return "all", f"{read.table}/", {f"{keys.get(row)}/{row}": 1 for row in read.rows}
