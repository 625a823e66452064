"""The cost model: a day's requests, seconds and dollars, from the requests of each operation and the load."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench import prices
from bench.requests import Measured, Requests
from dolmen.base.records import replace
from dolmen.maintenance.compact.compaction_plan import CompactionOptions
from dolmen.rows.scan.data_objects import MERGED_BYTES
from dolmen.rows.write.runs import DEFAULT
from dolmen.store.input import READ_AHEAD_BYTES
from dolmen.store.s3.bucket_store import FEW_PART_BYTES, FEW_THRESHOLD_BYTES

DAY_SECONDS = 86_400
TB = 1e12


@dataclass(frozen=True)
class Load:
    """A day's work, and the settings of the stack. Everything that the example does not say is an assumption.

    Args:
        bytes_in, bytes_deleted, queries: the example's. Bytes are those of the table's files.
        file_bytes: size of a dropped file, which becomes one data file of the same size.
        delete_messages: number of messages that delete the bytes.
        ingest_batch, ingest_window, delete_batch, delete_window: the most messages and seconds of a batch, from
            template.yaml.
        rounds, collections: rounds of background work and collections a day, from template.yaml.
        retention_days: how long versions are kept, and with them files that were rewritten or emptied.
        spread: the number of files that deletes are searched in, relative to the files that they would empty.
        query_files, query_groups: full files that a query reads after pruning, and row groups that it reads of them.
        warm: share of queries by processes with a warm cache.
        key_share: share of a file's bytes that resolving deletes reads.
        commit_seconds: time from reading the pointer to replacing it.
        part_bytes: size of a part of a multipart upload.
        ingest_rate, rewrite_rate, message_rate: bytes or messages per second of a function with ``memory_gb``, which
            has one processor; see docs/benchmarks.md.
        landing_days: days that a dropped file of a table with ``ingest_landing: expire`` is stored: until it expires,
            and then as an old version; from template.yaml.
        alarms, metrics: number of alarms and metrics of the stack, without jobs.
        line_bytes: size of a log record; there is one for each dropped file and each delete message.
    """

    bytes_in: float = 6 * TB
    bytes_deleted: float = 2 * TB
    queries: int = 50_000
    file_bytes: int = 64_000_000
    delete_messages: int = 1_000_000
    ingest_batch: int = 100
    ingest_window: int = 10
    delete_batch: int = 1_000
    delete_window: int = 5
    rounds: int = 96
    collections: int = 4
    retention_days: int = 30
    spread: int = 4
    query_files: int = 20
    query_groups: int = 60
    warm: float = 0.9
    key_share: float = 0.05
    commit_seconds: float = 0.2
    part_bytes: int = FEW_PART_BYTES
    ingest_rate: float = 30e6
    rewrite_rate: float = 50e6
    message_rate: float = 2_000
    memory_gb: float = 1769 / 1024
    landing_days: int = 37
    alarms: int = 25
    metrics: int = 76
    line_bytes: int = 500

    @property
    def files(self) -> float:
        """Files dropped a day."""
        return self.bytes_in / self.file_bytes

    @property
    def ingest_batches(self) -> float:
        """Commits of files: a batch is delivered when it is full or its window ends."""
        return batches(self.files, self.ingest_batch, self.ingest_window)

    @property
    def delete_batches(self) -> float:
        """Commits of delete messages."""
        return batches(self.delete_messages, self.delete_batch, self.delete_window)

    @property
    def logged_gigabytes(self) -> float:
        """Gigabytes that the functions log in a day."""
        return (self.files + self.delete_messages) * self.line_bytes / 1e9

    @property
    def watching(self) -> float:
        """Dollars a month for metrics, alarms, the dashboard and logs."""
        fixed = self.metrics * prices.CLOUDWATCH_METRIC + self.alarms * prices.CLOUDWATCH_ALARM
        return fixed + prices.CLOUDWATCH_DASHBOARD + 30 * self.logged_gigabytes * prices.CLOUDWATCH_LOGS_GB

    @property
    def rewritten(self) -> float:
        """Bytes that compaction writes: dropped files once, unless they are full, and the live rows of files with more
        than half of their rows deleted, which are at most as many as the deleted rows."""
        merged = self.bytes_in if self.file_bytes < DEFAULT.file_bytes / 2 else 0.0
        return merged + self.bytes_deleted


@dataclass(frozen=True)
class Line:
    """One line of the bill, a day's."""

    what: str
    requests: Requests
    seconds: float = 0.0
    invocations: float = 0.0
    messages: float = 0.0


def batches(messages: float, size: int, window: int) -> float:
    """Batches a day, for messages that arrive evenly."""
    return max(messages / size, min(messages, DAY_SECONDS / window))


def uploads(size: float, part_bytes: int) -> float:
    """PUTs of an object: one, or the start, the parts and the completion of a multipart upload."""
    return 1 if size <= FEW_THRESHOLD_BYTES else 2 + math.ceil(size / part_bytes)


def bill(load: Load, counted: Measured) -> list[Line]:
    """A day's requests and seconds, line by line."""
    commits = load.ingest_batches + load.delete_batches
    # The number of commits, arriving at random, that overlap with another commit.
    races = commits * min(1.0, commits / DAY_SECONDS * load.commit_seconds)
    full = DEFAULT.file_bytes
    looked_into = load.bytes_deleted / full * load.spread
    return [
        Line(
            "ingest: commits",
            counted.ingest * load.ingest_batches,
            seconds=load.bytes_in / load.ingest_rate + load.ingest_batches * load.commit_seconds,
            invocations=load.ingest_batches,
            messages=queue_requests(load.files),
        ),
        Line(
            "ingest: files",
            Requests(counted.ingest_file.puts - 1 + uploads(load.file_bytes, load.part_bytes), counted.ingest_file.gets)
            * load.files
            + Requests(0, (math.ceil(load.file_bytes / READ_AHEAD_BYTES) - 1) * load.files),
        ),
        Line(
            "deletes: commits",
            counted.delete * load.delete_batches + counted.delete_message * load.delete_messages,
            seconds=load.delete_messages / load.message_rate + load.delete_batches * load.commit_seconds,
            invocations=load.delete_batches,
            messages=queue_requests(load.delete_messages),
        ),
        Line("commits that lost a race", counted.lost_race * races),
        Line(
            "resolving deletes",
            (counted.resolve + counted.idle_round) * load.rounds
            + (counted.resolve_file + counted.resolve_group * (full / DEFAULT.row_group_bytes)) * looked_into,
            seconds=looked_into * full * load.key_share / load.rewrite_rate,
            invocations=load.rounds,
        ),
        _compaction(load, counted),
        Line(
            "collection (GC)",
            counted.gc * load.collections + counted.gc_version * commits,
            seconds=60.0 * load.collections,
            invocations=load.collections,
        ),
        Line(
            "queries",
            (counted.query_cold + counted.query_file_cold * load.query_files) * (load.queries * (1 - load.warm))
            + (counted.query_warm + counted.query_file_warm * load.query_files) * (load.queries * load.warm)
            + counted.query_group * (load.query_groups * load.queries),
        ),
    ]


def _compaction(load: Load, counted: Measured) -> Line:
    full = DEFAULT.file_bytes
    groups = load.rewritten / CompactionOptions().group_bytes
    inputs = (load.rewritten - load.bytes_deleted) / load.file_bytes + 2 * load.bytes_deleted / full
    ranges = (load.rewritten + load.bytes_deleted) / MERGED_BYTES
    written = uploads(full, load.part_bytes) * load.rewritten / full
    return Line(
        "compaction",
        Requests((counted.compact.puts - 1) * groups + written, counted.compact.gets * groups)
        + Requests(0, counted.compact_file.gets * inputs + max(0.0, ranges - inputs)),
        seconds=load.rewritten / load.rewrite_rate,
    )


def queue_requests(messages: float) -> float:
    """Requests to SQS: a message is sent alone, and received and deleted with up to nine others; five pollers ask an
    idle queue every 20 seconds (docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html)."""
    return messages * (1 + 2 / 10) + 5 * DAY_SECONDS / 20


def dollars(load: Load, line: Line) -> float:
    """A day's price of a line."""
    return (
        line.requests.puts * prices.S3_PUT
        + line.requests.gets * prices.S3_GET
        + line.seconds * load.memory_gb * prices.LAMBDA_GB_SECOND
        + line.invocations * prices.LAMBDA_REQUEST
        + line.messages * prices.SQS_REQUEST
    )


def stored(load: Load, days: int = 30) -> tuple[float, float]:
    """GB after a number of days: of live rows, and of files that only older versions refer to."""
    live = (load.bytes_in - load.bytes_deleted) * days
    old = (load.rewritten + load.bytes_deleted) * min(days, load.retention_days)
    return live / 1e9, old / 1e9


VARIANTS: dict[str, dict[str, float]] = {
    "files of 384 MB are dropped: nothing to merge": {"file_bytes": 400_000_000},
    "files of 8 MB are dropped": {"file_bytes": 8_000_000},
    "batching windows of 60 seconds": {"ingest_window": 60, "delete_window": 60},
    "versions kept for 7 days": {"retention_days": 7},
    "parts of 64 MB in multipart uploads": {"part_bytes": 64 << 20},
    "each delete is searched for in ten times as many files": {"spread": 40},
}
"""The changed assumptions for the table of variants."""


def variant(changes: dict[str, float]) -> Load:
    """The example with changed assumptions."""
    return replace(Load(), **changes)  # type: ignore[arg-type]
