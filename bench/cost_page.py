"""docs/cost.md, in which every figure is computed."""

# ruff: noqa: E501 (figures make the lines of the page long)

from __future__ import annotations

from dataclasses import fields

from bench import prices
from bench.cost_model import VARIANTS, Load, bill, dollars, stored, uploads, variant
from bench.requests import Measured, Requests

REFERENCE_PUTS = 380_000
"""PUTs a day that are given for the reference design at this load."""

_OPERATIONS = {
    "ingest": "a batch of files: its commit",
    "ingest_file": "each file of up to 64 MB in the batch",
    "delete": "a batch of up to 1,000 delete messages: its commit",
    "delete_message": "each message in the batch",
    "lost_race": "a commit that loses a race: in addition",
    "query_cold": "a query that opens the database",
    "query_warm": "a query by a process with a warm cache",
    "query_file_cold": "each file that the query reads for the first time (its footer)",
    "query_file_warm": "each file that it reads again",
    "query_group": "each row group of which it reads two narrow columns",
    "compact": "a compaction: its commit, its intent, its output of up to 64 MB",
    "compact_file": "each input file of up to 8 MB",
    "resolve": "a resolution of deletes: its commit and its vectors",
    "resolve_file": "each file in which rows may be deleted",
    "resolve_group": "each row group in such a file",
    "idle_round": "a round of background work that finds nothing to do",
    "gc": "a collection",
    "gc_version": "each version that expires (its share of a page of a listing)",
}


def page(counted: Measured) -> str:
    """The whole page."""
    load = Load()
    lines = bill(load, counted)
    total = sum((line.requests for line in lines), Requests(0, 0))
    puts = {line.what: line.requests.puts for line in lines}
    foreground = puts["ingest: commits"] + puts["ingest: files"] + puts["deletes: commits"]
    background = total.puts - foreground
    live, old = stored(load)
    landed = load.bytes_in / 1e9
    counts = "\n".join(
        f"| {_OPERATIONS[each.name]} | {_number(getattr(counted, each.name).puts)} "
        f"| {_number(getattr(counted, each.name).gets)} |"
        for each in fields(counted)
    )
    billed = "\n".join(
        f"| {line.what} | {line.requests.puts:,.0f} | {line.requests.gets:,.0f} | {line.seconds:,.0f} "
        f"| {dollars(load, line):,.2f} |"
        for line in lines
    )
    daily = sum(dollars(load, line) for line in lines)
    varied = [_variant_row("as above", load, counted)]
    varied += [_variant_row(name, variant(changes), counted) for name, changes in VARIANTS.items()]
    busy = next(line.seconds for line in lines if line.what == "compaction") / 86_400
    return f"""# Cost on AWS

This page is written by `python -m bench.cost --write` (`make cost`). Requests are counted on the current code. Prices are from
`bench/prices.py` (us-east-1; recorded in November 2026, not yet compared with AWS's pages: [S3]({prices.S3_SOURCE}), [Lambda]({prices.LAMBDA_SOURCE}),
[SQS]({prices.SQS_SOURCE})). Everything else is an assumption, in `Load` of
`bench/cost_model.py`, which you can change.

## Counted requests

"PUT" includes POST and LIST, which have the same price, and "GET" includes HEAD. DELETE is free.

| what | PUT | GET |
|---|---|---|
{counts}

Larger objects need more requests: a dropped file is read 8 MB at a time, compaction reads ranges of up to 8 MB, and an object
above 64 MB is uploaded in parts ({uploads(384 << 20, load.part_bytes):.0f} PUTs for a full file of 384 MB). This holds for the functions. In Python and on the
command line, objects above 16 MB are uploaded in parts of 16 MB, each while the next one is made.

## An example

{load.bytes_in / 1e12:.0f} TB a day are ingested, {load.bytes_deleted / 1e12:.0f} TB a day are deleted, and there are {load.queries:,} queries a day; bytes are those of the table's Parquet
files. Assumptions: {load.files:,.0f} files of {load.file_bytes / 1e6:.0f} MB are dropped and {load.delete_messages:,} delete messages are sent, both evenly over the day.
Batching windows ({load.ingest_window} and {load.delete_window} seconds) and schedules are those of `template.yaml`. Dropped files are merged once into full
files, and a file is rewritten when more than half of its rows are deleted. A query reads {load.query_groups} row groups of
{load.query_files} files; {load.warm:.0%} of the queries come from processes with a warm cache. Statistics limit the
resolution of deletes to at most {load.spread} times the files that the deletes would empty.

| a day's | PUT | GET | Lambda seconds | dollars |
|---|---|---|---|---|
{billed}
| **together** | **{total.puts:,.0f}** | **{total.gets:,.0f}** | **{sum(line.seconds for line in lines):,.0f}** | **{daily:,.2f}** |

Lambda seconds are for functions with 1,769 MB (one processor). Dollars cover S3 requests, Lambda and SQS. Queries run on your own
machines. Compaction would keep {busy:.1f} such functions busy all day, but only one runs at a time: for this load, give it more
memory (`MaintenanceMemorySize`, which also adds processors), drop larger files, or use several databases.

**Storage is the larger part.** After 30 days {live / 1e3:,.0f} TB of rows are live, and {old / 1e3:,.0f} TB are kept because versions of
the last {load.retention_days} days still show them: {prices.storage(live + old):,.0f} dollars a month for both, {prices.storage(live):,.0f} for the rows alone. Shorter retention
(`dolmen settings`) is the first setting to change.

**Dropped files are stored, too**, in addition to their rows: permanently, unless their tables have `ingest_landing: expire`.
At {load.bytes_in / 1e12:.0f} TB a day these are {landed * 30 / 1e3:,.0f} TB and {prices.storage(landed * 30):,.0f} dollars a month after 30 days, and the same again for each further month. Files
that expire are deleted after 7 days, and their old versions after 30 more (`LandingExpireDays`, `LandingOverwrittenDays`): at
most {landed * load.landing_days / 1e3:,.0f} TB and {prices.storage(landed * load.landing_days):,.0f} dollars a month, or {prices.storage(landed * 2):,.0f} with one day each.

**CloudWatch** ([prices]({prices.CLOUDWATCH_SOURCE})): {load.metrics} metrics, {load.alarms} alarms, a dashboard, and {load.logged_gigabytes:.2f} GB of logs a day (a record of about {load.line_bytes} bytes for
each dropped file and each delete message): {load.watching:,.0f} dollars a month. An idle stack pays only for the alarms and the
dashboard, because metrics cost only in hours with data.

| variant | PUT a day | GET a day | requests and functions, dollars a day | storage after 30 days, dollars a month |
|---|---|---|---|---|
{chr(10).join(varied)}

## Compared with {REFERENCE_PUTS:,} PUTs a day

This is the figure given for the reference design at this load: one PUT for each {load.bytes_in / REFERENCE_PUTS / 1e6:.1f} MB of input. That is
plausible if each small batch of events becomes one object per hour partition, with deletes and metadata in addition. What
exactly it counts is not known.

dolmen's {total.puts:,.0f} consist of two parts. **Ingest and deletes need {foreground:,.0f}**: one for each dropped file, two for each
batch of files, and three for each batch of deletes, whatever its number of messages, deleted rows and files, because no data
file is read. They grow with the number of files and batching windows, not with the bytes deleted. **The other
{background:,.0f} are background work**, {puts["compaction"]:,.0f} of them for compaction, and nearly all of these for parts of {load.part_bytes >> 20} MB. They grow with the bytes
rewritten, cost {background * prices.S3_PUT:,.2f} dollars a day, and are not needed if full files are dropped. A design that never rewrites files saves
them, and pays in every query.
"""


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.3f}"


def _variant_row(name: str, load: Load, counted: Measured) -> str:
    lines = bill(load, counted)
    total = sum((line.requests for line in lines), Requests(0, 0))
    return (
        f"| {name} | {total.puts:,.0f} | {total.gets:,.0f} | {sum(dollars(load, line) for line in lines):,.2f} "
        f"| {prices.storage(sum(stored(load))):,.0f} |"
    )
