"""The part ``spark``: measures, prints each line, and writes Markdown."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.spark import measured
from bench.spark.delta import Delta
from bench.spark.engine import SETTINGS, Engine
from bench.spark.iceberg import Iceberg
from bench.spark.measured import Line
from bench.spark.ours import Dolmen
from bench.spark.source import FILES, Source, make
from bench.spark.workers import Worker, workers
from bench.spark.writes import Writing

ONLY = ("reads", "deletes", "writes")
PEERS: dict[str, type[Engine]] = {"delta": Delta, "iceberg": Iceberg}


def measure_spark(
    rows: int, rounds: int, only: Sequence[str], peers: Sequence[str], tell: Callable[[str], None]
) -> list[str]:
    """Sections of the page.

    Args:
        rows: number of rows of the table.
        rounds: rounds of queries and deletes; writes take at most three.
        only: a part of ``ONLY``.
        peers: a part of ``PEERS``, with which dolmen is compared.
        tell: called with each line.
    """
    _require_java()
    sections = []
    with _source(rows) as (directory, source):
        if {"reads", "deletes"} & set(only):
            with workers([Dolmen, *(PEERS[name] for name in peers)], directory, source) as engines:
                head = _head(source, rounds, peers)
                if "reads" in only:
                    lines = measured.reads(engines, rounds)
                    scans = section("Spark: scans, local directory", head, engines, lines, tell)
                    spent = measured.parts(engines[0], rounds)
                    tell(spent)
                    sections.append(f"{scans}\n{spent}\n")
                if "deletes" in only:
                    lines = measured.deletes(engines, rounds)
                    sections.append(section("Spark: deletes, local directory", head, engines, lines, tell))
        if "writes" in only:
            some = min(rounds, 3)
            with workers([Writing], directory, source) as [writer]:
                head = (
                    f"The same rows, {some} rounds, beside Spark's own writer of Parquet with zstd. dolmen's files "
                    "also have page indexes, checksums and Bloom filters of keys."
                )
                lines = measured.writes(writer, some)
                sections.append(section("Spark: writes, local directory", head, [], lines, tell))
    return sections


def _require_java() -> None:
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if os.environ.get("JAVA_HOME") else shutil.which("java")
    if java is None or not shutil.which(java):
        raise SystemExit("Spark needs Java 17 or newer: apt install openjdk-17-jre-headless")


@contextmanager
def _source(rows: int) -> Iterator[tuple[Path, Source]]:
    with tempfile.TemporaryDirectory(prefix="dolmen-bench-") as name:
        yield Path(name), make(Path(name), rows)


def _head(source: Source, rounds: int, peers: Sequence[str]) -> str:
    packages = ", ".join(f"`{PEERS[name].packages}`" for name in peers)
    settings = ", ".join(f"`{name}={value}`" for name, value in SETTINGS.items() if "memory" in name or "part" in name)
    return (
        f"{source.rows:,} rows of 8 columns in {FILES} files; medians of {rounds} rounds in turns, after warm-ups. "
        "Seconds are processor time of the driver and its JVM, with the clock's in brackets. Each engine has its own "
        f"process, with `local[2]`, {settings}{'; compared with ' + packages if packages else ''}. Plain is "
        "`spark.read.parquet` of the same engine's files, without deletes. Deletes by key are resolved, unless said "
        "otherwise."
    )


def section(
    title: str, head: str, engines: Sequence[Worker], lines: Iterator[Line], tell: Callable[[str], None]
) -> str:
    """A section of the page. Each line is passed to ``tell``."""
    names = [engine.name for engine in engines] or ["dolmen"]
    others = names[1:]
    plain = "deletes" not in title
    columns = ["what", *(["plain"] if plain else []), *names]
    columns += [f"{name} / plain" for name in names] if plain else []
    columns += [f"dolmen / {name}" for name in others]
    page = [f"## {title}", "", head, "", f"| {' | '.join(columns)} | target |", "|---" * (len(columns) + 1) + "|"]
    for line in lines:
        cells = [line.name]
        for name in (["plain"] if plain else []) + names:
            spent = line.spent.get(name)
            cells.append("" if spent is None else f"{spent.cpu:.2f} ({spent.wall:.2f})")
        cells += [_number(line.ratios, name) for name in names] if plain else []
        cells += [_number(line.over, name) for name in others]
        page.append(f"| {' | '.join(cells)} | {'; '.join(line.targets)} |")
        tell(page[-1])
    return "\n".join(page) + "\n"


def _number(ratios: dict[str, float], name: str) -> str:
    return f"{ratios[name]:.2f}" if name in ratios else ""
