"""Histories that real processes recorded, beside lost answers and kills, are strictly serializable."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

import dolmen
from support.isolation_workers import Journal, Worker, create_tables, opening, recorded, run
from support.ministack import endpoint_environment
from support.porcupine import RecordedTransaction, find_porcupine, judge
from support.proxy import Proxy
from support.writers import start

SEED = int(os.environ["DOLMEN_TEST_SEED"])
LONG = bool(os.environ.get("DOLMEN_LONG"))
PROCESSES, CALLS, KILLS = (6, 400, 30) if LONG else (3, 16, 2)


@pytest.fixture(autouse=True)
def _porcupine() -> None:
    if find_porcupine()[0] is None:
        pytest.skip(find_porcupine()[1])


@pytest.fixture
def faulty_minio_url(minio: str, minio_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A place on MinIO, behind a proxy that loses some answers about the pointer after the put was applied."""
    proxy = Proxy.start(minio)
    for name, value in endpoint_environment(proxy.url).items():
        monkeypatch.setenv(name, value)
    proxy.rule("lose", "503-after", "reset", method="PUT", key="_latest_manifest", probability=0.15, times=None)
    yield minio_url
    proxy.stop()


def record(
    url: str, folder: Path, seed: int, *, calls: int = CALLS, kills: int = 0, unchecked: bool = False
) -> list[RecordedTransaction]:
    """Lets processes work on a new database, kills some of them, and returns all that was seen."""
    rng = random.Random(seed)
    called_ns = time.monotonic_ns()
    db = dolmen.open(url)
    create_tables(db)
    history, journals = [opening(called_ns)], list[Path]()

    def begin() -> tuple[ForkServerProcess, Path]:
        journals.append(folder / f"{len(journals)}.jsonl")
        journals[-1].touch()
        name, seed = f"w{len(journals)}", rng.randrange(1 << 30)
        return start(run, url, name, calls, seed, str(journals[-1]), unchecked), journals[-1]

    working = [begin() for _ in range(PROCESSES)]
    for _ in range(kills):
        place = rng.randrange(PROCESSES)
        process, journal = working[place]
        _wait_for_lines(process, journal, rng.randrange(6, 2 * calls))
        process.kill()
        process.join()
        working[place] = begin()
    for process, _ in working:
        process.join(600)
        assert process.exitcode == 0
    journals.append(folder / "end.jsonl")
    with journals[-1].open("w") as file:
        Worker(db, Journal(file, "end"), rng, "end").audit_by_transaction()
    return history + recorded(journals, {commit.message for commit in db.history()})


def _wait_for_lines(process: ForkServerProcess, journal: Path, lines: int) -> None:
    while process.is_alive() and len(journal.read_bytes().splitlines()) < lines:
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(1_800 if LONG else 300)
@pytest.mark.parametrize("place", ["directory", "minio", "minio with faults"])
def test_histories_of_processes_are_strictly_serializable(
    request: pytest.FixtureRequest, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fixtures = {"minio": "minio_url", "minio with faults": "faulty_minio_url"}
    url = request.getfixturevalue(fixtures[place]) if place in fixtures else str(tmp_path / "db")
    began = time.monotonic()
    history = record(url, tmp_path, SEED, kills=KILLS if place != "minio" else 0)
    ran = time.monotonic()
    verdict = judge(history, 600 if LONG else 60)
    with capsys.disabled():
        unknown = sum(each.return_ns is None for each in history)
        print(
            f"\n{place}: {len(history)} transactions, {unknown} without an answer, recorded in {ran - began:.1f} s, "
            f"judged in {time.monotonic() - ran:.1f} s: {verdict.result}"
        )
    assert verdict == ("serializable", [])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_engine_that_does_not_look_at_reads_is_rejected(tmp_path: Path) -> None:
    assert judge(record(str(tmp_path / "db"), tmp_path, SEED, calls=20, unchecked=True)).result == "violation"
