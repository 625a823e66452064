"""``python -m bench.quick``: what got worse since it was last recorded, in less than three minutes.

Processor times are compared only as ratios within this run, with pyarrow or with the same scan before the deletes;
requests and bytes are counted exactly, in memory. bench/quick.json has the last recorded figures, and ``--record``
writes them. The exit code is 1 if a figure is worse.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import dolmen
from bench import plain
from bench.append import create
from bench.dataset import SCHEMA, events
from bench.ingest import FORMATS
from bench.scans import COLUMNS
from bench.unresolved import make_table, scan_seconds
from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.ingest.formats.formats import SourceFile, detect
from dolmen.ingest.formats.formats import read as read_rows
from dolmen.store.memory import MemoryBucket, MemoryStore
from dolmen_simulator.counting import CountingStore

RECORDED = Path(__file__).with_suffix(".json")
ROUNDS, SECONDS = 7, 6.0  # of each comparison, whichever comes first
_INDEXES, _SMALL_FILES = 4, 500
LARGER_RATIO, MORE_BYTES = 1.4, 1.02  # how much a figure may grow before it is worse

Counts = dict[str, dict[str, int]]
Ratios = dict[str, float]


def processor_seconds(function: Callable[[], object]) -> float:
    """The processor time of a call, with that of the processes that end in it."""
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    function()
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after, strict=True))


def ratio(ours: Callable[[], object], other: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median ratio of the processor times of two calls, in turns, after one warm-up of each."""
    ours(), other()
    began, found = time.monotonic(), list[float]()
    while len(found) < 3 or (len(found) < rounds and time.monotonic() - began < SECONDS):
        found.append(processor_seconds(ours) / processor_seconds(other))
    return statistics.median(found)


# ---- ratios


def ratios(folder: Path, rows: int) -> Iterator[tuple[str, float]]:
    """Every ratio with its name: less is better."""
    table = events(rows)
    yield from _starting(folder)
    yield from _appends_and_scans(folder, table)
    yield from _deletes(folder, table)
    yield from _many_deletes(folder)
    yield from _keys(folder, rows)
    yield from _files(folder, table.slice(0, rows // 4))


def _starting(folder: Path) -> Iterator[tuple[str, float]]:
    url = str(folder / "start")
    create(url).append(events(2))

    def run(code: str) -> Callable[[], object]:
        return partial(subprocess.run, [sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)

    arrow = run("import pyarrow")
    yield (
        "start: open and count / import pyarrow",
        ratio(run(f"import dolmen; dolmen.open({url!r}).table('events').count()"), arrow),
    )
    command = f"import sys; sys.argv[1:] = ['tables', '-d', {url!r}]; from dolmen.cli import main; main()"
    yield "start: dolmen tables / import pyarrow", ratio(run(command), arrow)


def _sums(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    return [[pc.sum(batch[name]).as_py() for name in COLUMNS] for batch in batches]


def _scan(url: str) -> list[Any]:
    """The sum of two columns in a database that is opened, with an empty cache."""
    return _sums(iter(dolmen.open(url, runtime=Runtime()).table("events").scan(COLUMNS).to_reader()))


def _fresh(folder: Path) -> str:
    return tempfile.mkdtemp(dir=folder)


def _appends_and_scans(folder: Path, table: pa.Table) -> Iterator[tuple[str, float]]:
    chosen = plain.settings(table)

    def write() -> None:
        with plain.writer(folder / "plain.parquet", chosen) as writer:
            writer.write_table(table, row_group_size=plain.GROUP_ROWS)

    yield "append / pyarrow's writer", ratio(lambda: create(_fresh(folder)).append(table), write)
    create(url := _fresh(folder)).append(table)
    files = ds.dataset(str(Path(url) / "data"), format="parquet")
    yield (
        "open, and sums / pyarrow.dataset",
        ratio(partial(_scan, url), lambda: _sums(files.to_batches(columns=COLUMNS))),
    )


def _deletes(folder: Path, table: pa.Table) -> Iterator[tuple[str, float]]:
    clean, deleted = _fresh(folder), _fresh(folder)
    for url in (clean, deleted):
        create(url).append(table)
    ids = np.random.default_rng(3).choice(table.num_rows, table.num_rows // 100, replace=False)
    target = dolmen.open(deleted).table("events")
    target.delete(keys=pa.table({"id": ids}))
    yield "sums after a delete of 1 % of the keys / before", ratio(partial(_scan, deleted), partial(_scan, clean))
    dolmen.open(deleted).resolve()
    yield "sums after its resolution / before", ratio(partial(_scan, deleted), partial(_scan, clean))


def _many_deletes(folder: Path) -> Iterator[tuple[str, float]]:
    for form in ("u = {n} AND s LIKE '%x' AND id % 7 = {rest}", "u > {n} AND u < {n} + 3 AND s LIKE '%x'"):
        deleted, clean = (make_table(str(folder), 50, 1_000, count, form) for count in (40, 0))
        yield (
            f"50 small files, 40 deletes of {form} / none",
            ratio(partial(scan_seconds, deleted), partial(scan_seconds, clean)),
        )


def _uuids(numbers: np.ndarray[Any, Any]) -> pa.Array:
    """Texts of 32 digits, in no order."""
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    digits = np.frombuffer(mixed.byteswap().tobytes().hex().encode(), "S16")
    return pa.array(np.char.add(digits, digits[::-1]).astype(str), pa.string())


def _keys(folder: Path, rows: int) -> Iterator[tuple[str, float]]:
    uuids = _uuids(np.arange(rows))
    whole = pa.table({"id": uuids, "value": np.arange(rows)})
    part = pa.table({"id": uuids.take(pa.array(np.arange(0, rows, 10))), "value": np.zeros(rows // 10, np.int64)})

    def make(rows: pa.Table = whole, **properties: Any) -> Database:
        database = dolmen.open(_fresh(folder))
        database.create_table("t", whole.schema, primary_key="id", properties=properties).append(rows)
        return database

    def scan(database: Database) -> object:
        return database.table("t").scan(["value"]).to_arrow()

    clean, upserted = make(), make()
    yield (
        "upsert of 10 % by UUID / pyarrow's sort of its rows",
        ratio(lambda: upserted.table("t").upsert(part), lambda: part.sort_by("id")),
    )
    upserted = make()
    upserted.table("t").upsert(part)
    yield "scan after an upsert of 10 % by UUID / before", ratio(partial(scan, upserted), partial(scan, clean))
    without = iter([make(part, index=True) for _ in range(_INDEXES)])
    yield (
        "index of UUIDs / pyarrow's sort of them",
        ratio(
            lambda: next(without).maintain(steps=["index"]),
            lambda: part["id"].combine_chunks().sort(),
            rounds=_INDEXES - 1,
        ),
    )
    indexed = make(part, index=True)
    indexed.maintain(steps=["index"])
    pinned, wanted = indexed.at(indexed.version).table("t"), part["id"].to_pylist()[:: rows // 10 // 50]
    yield "50 look-ups by UUID / a scan", ratio(lambda: [pinned.get(key) for key in wanted], partial(scan, clean))


def _files(folder: Path, table: pa.Table) -> Iterator[tuple[str, float]]:
    chosen = plain.settings(table)
    for name in ("csv", "jsonl"):
        write, read = FORMATS[name]
        write(table, path := folder / f"drop.{name}")

        def ours(path: Path = path) -> None:
            source = SourceFile(lambda: path.open("rb"), detect(path.name), path.name)
            create(_fresh(folder)).append(read_rows(source, SCHEMA))

        def other(path: Path = path, read: Any = read) -> None:
            with plain.writer(folder / "plain.parquet", chosen) as writer:
                writer.write_table(read(path).select(SCHEMA.names).cast(SCHEMA), row_group_size=plain.GROUP_ROWS)

        yield f"{name}: read, check and append / pyarrow's read and write", ratio(ours, other)
    small = Path(_fresh(folder))
    paths = [small / f"{n}.parquet" for n in range(_SMALL_FILES)]
    for n, path in enumerate(paths):
        pq.write_table(table.slice(n * 100, 100), path)

    def adopt() -> str:
        dolmen.open(url := _fresh(folder)).adopt("events", str(small))
        return url

    yield (
        f"{_SMALL_FILES} small files: adopt / read them with pyarrow",
        ratio(adopt, lambda: [pq.read_table(path) for path in paths]),
    )
    url, files = adopt(), ds.dataset(str(small), format="parquet")
    yield (
        f"{_SMALL_FILES} small files: open, and sums / pyarrow.dataset",
        ratio(partial(_scan, url), lambda: _sums(files.to_batches(columns=COLUMNS))),
    )


# ---- counts


class _Clock:
    """A clock that each look at it moves by a millisecond, so that the same requests have the same bytes."""

    def __init__(self) -> None:
        self._ms = 1_790_000_000_000

    def us(self) -> int:
        self._ms += 1
        return self._ms * 1_000

    def seconds(self) -> float:
        return self._ms / 1_000

    def sleep(self, seconds: float) -> None:
        self._ms += int(seconds * 1_000)


def counts(rows: int = 100_000) -> Counts:
    """Requests and bytes of each operation of one database, one after the other: always the same."""
    clock = _Clock()
    bucket, found, random = MemoryBucket(clock.us), Counts(), Random(1)

    def database() -> tuple[Database, CountingStore]:
        """The database as another process opens it."""
        runtime = Runtime(clock_us=clock.us, monotonic=clock.seconds, sleep=clock.sleep, random=random, threads=1)
        store = CountingStore(MemoryStore(bucket, runtime))
        return Database(store, runtime), store

    db, store = database()

    def count(name: str, work: Callable[[], object]) -> None:
        store.reset()
        work()
        reads = store.gets + store.heads + store.lists
        found[name] = {"puts": store.puts, "gets": reads, "up": store.bytes_up, "down": store.bytes_down}

    table = db.create_table("events", SCHEMA, primary_key="id", sort_key="id", properties={"index": True})
    whole = events(rows)
    count("append", lambda: table.append(whole))
    count("small append", lambda: table.append(events(100, 2).set_column(0, SCHEMA.field(0), [_range(rows, 100)])))
    count("delete by key", lambda: table.delete({"id": 7}))
    count("delete by predicate", lambda: table.delete("amount < 1 AND country = 'DE'"))
    count("upsert of 1 %", lambda: table.upsert(whole.slice(0, rows // 100)))
    count("index", lambda: db.maintain(steps=["index"]))
    db, store = database()
    count("open, and sums", lambda: _sums(iter(db.table("events").scan(COLUMNS).to_reader())))
    count("the same again", lambda: _sums(iter(db.table("events").scan(COLUMNS).to_reader())))
    db, store = database()
    count("open, and look-up", lambda: db.table("events").get(rows // 2))
    count("another look-up", lambda: db.table("events").get(rows // 3))
    count("resolution", lambda: db.resolve())
    count("compaction", lambda: db.compact())
    count("an idle round", lambda: db.maintain())
    return found


def _range(first: int, rows: int) -> pa.Array:
    return pa.array(np.arange(first, first + rows))


# ---- comparison with what was recorded


def worse(old: Mapping[str, Any], ratios: Ratios, counts: Counts) -> Iterator[str]:
    """Says for each figure whose like was recorded, and is exceeded, what it was and is."""
    for name, now in ratios.items():
        if now > LARGER_RATIO * (before := old["ratios"].get(name, now)):
            yield f"{name}: {now:.2f}, recorded {before:.2f}"
    for name, sent in counts.items():
        for what, number in sent.items():
            before = old["counts"].get(name, sent)[what]
            if number > before * (1 if what in ("puts", "gets") else MORE_BYTES):
                yield f"{name}: {number:,} {what}, recorded {before:,}"


def main() -> None:
    """Prints each figure beside the recorded one, and at the end those that are worse."""
    options = argparse.ArgumentParser(prog="python -m bench.quick", description=__doc__)
    options.add_argument("--rows", type=int, default=400_000)
    options.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    chosen = options.parse_args()
    old = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"ratios": {}, "counts": {}}
    counted, measured = counts(), Ratios()
    with tempfile.TemporaryDirectory(prefix="dolmen-bench-") as folder:
        for name, found in ratios(Path(folder), chosen.rows):
            measured[name] = round(found, 3)
            print(f"{found:8.2f}  (recorded {old['ratios'].get(name, float('nan')):.2f})  {name}", flush=True)
    for name, sent in counted.items():
        print(f"{name}: {', '.join(f'{number:,} {what}' for what, number in sent.items())}")
    if chosen.record:
        RECORDED.write_text(json.dumps({"ratios": measured, "counts": counted}, indent=1) + "\n")
    complaints = [*worse(old, measured, counted)]
    print("\n".join(["", "worse than recorded:", *complaints]) if complaints else "\nnothing is worse than recorded")
    sys.exit(1 if complaints and not chosen.record else 0)


if __name__ == "__main__":
    main()
