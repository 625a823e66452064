"""The sections about tables: an overview, and charts of each one's files, deletes and index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dolmen.base.units import count_text, duration_text, size_text
from dolmen.maintenance.health.elements import (
    HEIGHT,
    WIDTH,
    Html,
    element,
    facts,
    grid,
    join,
    key_legend,
    labelled_meter,
    meter,
    power_text,
    range_text,
    share_text,
    small_print,
)
from dolmen.maintenance.health.health import DeleteCost, FileSizes, Health, SortOverlap, TableHealth

MOST_PANELS = 50  # the most tables with a panel of their own: the largest by bytes

_MOST_OPEN_SECTIONS = 8

MOST_BARS = 14  # the most bars of a histogram; neighbouring sizes share one if there are more


def table_overview(health: Health) -> Html:
    columns = {
        "table": "",
        **dict.fromkeys(("rows in files", "deleted", "files", "size", "small files", "unresolved deletes"), "number"),
        "overlap": "number",
        "Iceberg": "time",
        "key index": "time",
    }
    rows = [_overview_row(index, table) for index, table in enumerate(health.tables)]
    content: Html = (
        grid("All tables, the largest first", columns, rows) if rows else element("p", "There is no table yet.")
    )
    return element("section", element("h2", "Tables", id="tables"), content, aria_labelledby="tables")


def _overview_row(index: int, table: TableHealth) -> tuple[object, ...]:
    debt = table.debt
    name: object = element("a", table.name, href=f"#table-{index}") if index < MOST_PANELS else table.name
    return (
        name,
        f"{debt.rows:,}",
        f"{debt.dead_rows:,}" if debt.dead_rows else "",
        f"{debt.files:,}",
        size_text(debt.bytes),
        f"{debt.small_files:,}" if debt.small_files else "",
        f"{debt.tombstones:,}" if debt.tombstones else "",
        f"{table.overlap.mean:,.1f}" if table.overlap and table.overlap.depths else "",
        _publication_summary(table),
        _index_summary(table),
    )


def table_panels(health: Health) -> Html:
    is_open = len(health.tables) <= _MOST_OPEN_SECTIONS
    shown = health.tables[:MOST_PANELS]
    return join(_panel(index, table, is_open) for index, table in enumerate(shown))


def _panel(index: int, table: TableHealth, is_open: bool) -> Html:
    debt = table.debt
    text = f"{count_text(debt.rows, 'row')}, {count_text(debt.files, 'file')}, {size_text(debt.bytes)}"
    keys = [count_text(table.columns, "column")]
    keys += [f"primary key {', '.join(table.primary_key)}"] if table.primary_key else ["no primary key"]
    keys += [f"sort key {', '.join(table.sort_key)}"] if table.sort_key else ["no sort key"]
    summary = element("summary", element("h3", table.name), element("span", text, class_="muted"))
    inside = element(
        "div", small_print("; ".join(keys)), element("div", *_panels(index, table), class_="panels"), class_="inside"
    )
    opens = is_open and debt.files > 0
    return element("details", summary, inside, class_="card table", id=f"table-{index}", open=opens)


def _panels(index: int, table: TableHealth) -> Iterator[Html]:
    debt = table.debt
    if not debt.files:
        yield small_print("It has no file yet.")
        return
    if table.sizes.counts:
        yield _titled_panel("Files by size", size_histogram(table.sizes), _small_files(table))
    if table.overlap:
        yield _titled_panel("Overlap in the sort key", *_overlap(table.overlap, f"overlap-{index}"))
    yield _titled_panel("Deletes", *_deletes(table))
    if debt.index_entries is not None:
        yield _titled_panel("Index of keys", *_index(table))
    if debt.published_version is not None:
        yield _titled_panel("Published as Iceberg", element("p", _publication(table)))


def _titled_panel(title: str, *content: object) -> Html:
    return element("div", element("h4", title), *content, class_="panel")


def _small_files(table: TableHealth) -> Html:
    debt, sizes = table.debt, table.sizes
    limit = size_text(sizes.small_below_bytes)
    if not sizes.small_files:
        text = f"No file is below {limit}, half of a full file."
    elif debt.files_saved:
        text = (
            f"{count_text(sizes.small_files, 'file is', 'files are')} below {limit}, half of a full file. Compaction "
            f"could make {count_text(debt.files_saved, 'file')} fewer of them."
        )
    else:
        below = count_text(sizes.small_files, "file is", "files are")
        text = f"{below} below {limit}, half of a full file: too few to merge."
    return small_print(text)


def size_histogram(sizes: FileSizes) -> Html:
    """A table of sizes with a bar for each. Bars of small files have another colour and a label."""
    least, greatest = min(sizes.counts), max(sizes.counts)
    step = -(-(greatest - least + 1) // MOST_BARS)
    bars = [
        (first, sum(sizes.counts.get(exponent, 0) for exponent in range(first, first + step)))
        for first in range(least, greatest + 1, step)
    ]
    most = max(count for _, count in bars)
    rows = [_bar(first, first + step, count, most, sizes.small_below_bytes) for first, count in bars]
    head = element(
        "tr", element("th", "size", scope="col"), element("td", class_="wide"), element("th", "files", scope="col")
    )
    return element("table", element("thead", head), element("tbody", *rows), class_="bars")


def _bar(first: int, end: int, count: int, most: int, small_below: int) -> Html:
    small = 2**end <= small_below
    label = range_text(first, end) if first else f"below {power_text(end)}"
    return element(
        "tr",
        element("th", label, element("span", " small", class_="tag small") if small else None, scope="row"),
        element("td", meter(count, most, "small" if small else ""), class_="wide"),
        element("td", f"{count:,}", class_="number"),
    )


def _overlap(overlap: SortOverlap, name: str) -> Iterator[Html]:
    if not overlap.depths:
        reason = "too many to compare" if overlap.files else "their bounds are not known"
        yield small_print(f"Not drawn: {count_text(overlap.files + overlap.unknown, 'file')}, {reason}.")
        return
    yield overlap_chart(overlap, name)
    yield key_legend(("", f"most files at one point: {overlap.deepest:,}"), ("line-key", f"mean: {overlap.mean:,.1f}"))
    unknown = f" {count_text(overlap.unknown, 'file')} without known bounds are read too." if overlap.unknown else ""
    yield small_print(
        "The number of files that a filter reads for one value of ",
        element("code", overlap.column),
        f". Points are in the order of the files' bounds; distances say nothing about values.{unknown}",
    )


def overlap_chart(overlap: SortOverlap, name: str) -> Html:
    """The depth of overlap over the range of the sort key, by rank; ``name`` is unique on the page."""
    parts = overlap.depths
    top = max(overlap.deepest, 1)
    width = WIDTH / len(parts)

    def outline(depths: Iterable[float]) -> str:
        points = (
            f"{index * width:.1f},{HEIGHT - depth / top * HEIGHT:.1f} "
            f"{(index + 1) * width:.1f},{HEIGHT - depth / top * HEIGHT:.1f}"
            for index, depth in enumerate(depths)
        )
        return " ".join(points)

    greatest = outline(most for _, most in parts)
    mean = outline(mean for mean, _ in parts)
    description = (
        "Over the range of the sort key, from the least to the greatest, up to "
        f"{count_text(overlap.deepest, 'file')} share a value, and {overlap.mean:,.1f} on average."
    )
    drawing = element(
        "svg",
        element("title", "Overlap of files in the sort key", id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        *(element("line", class_="grid", x1=0, x2=WIDTH, y1=y, y2=y) for y in (0, HEIGHT // 2, HEIGHT)),
        element("path", class_="area", d=f"M0,{HEIGHT} L{greatest} L{WIDTH},{HEIGHT} Z"),
        element("path", class_="line", d=f"M{mean}"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )
    axis = [element("span", f"{top:,}"), element("span", "0")]
    return element(
        "div",
        element("div", *axis, class_="y-axis", aria_hidden="true"),
        element("div", drawing, class_="plot"),
        element(
            "div", element("span", "least key"), element("span", "greatest key"), class_="x-axis", aria_hidden="true"
        ),
        class_="chart",
    )


def _deletes(table: TableHealth) -> Iterator[Html]:
    debt, cost = table.debt, table.deletes
    if debt.rows:
        yield labelled_meter("deleted rows", debt.dead_rows, debt.rows, f"{debt.dead_rows:,} of {debt.rows:,}")
    if cost is None:
        yield small_print("No delete is unresolved: scans compare no rows with deletes.")
        return
    text = f"{cost.files:,} of {debt.files:,}"
    yield labelled_meter("files to compare", cost.files, debt.files, text, "warning")
    pairs = [
        ("unresolved deletes", f"{cost.deletes:,}"),
        ("the oldest", f"{duration_text(cost.oldest_age_us)} old"),
        ("cost of a full scan", _cost(cost)),
        ("time of a full scan, estimated", f"{cost.slowdown:,.1f} times that without them"),
    ]
    yield facts(pairs)


def _cost(cost: DeleteCost) -> str:
    compared = f"{count_text(cost.rows, 'row')} to compare"
    return (
        f"{compared}; {count_text(cost.objects, 'object')}, {size_text(cost.bytes)} to fetch"
        if cost.objects
        else compared
    )


def _index(table: TableHealth) -> Iterator[Html]:
    debt = table.debt
    if not table.indexed:
        yield small_print("The table should have none: the next round of maintenance removes it.")
        return
    indexed_rows = max(0, debt.rows - debt.index_lag_rows)
    yield labelled_meter("rows in it", indexed_rows, max(debt.rows, 1), f"up to {indexed_rows:,} of {debt.rows:,}")
    text = (
        f"At least {count_text(debt.index_lag_rows, 'row')} of new files: look-ups read these files instead."
        if debt.index_lag_rows
        else "It is complete, as far as counts tell."
    )
    yield small_print(text)


def _index_summary(table: TableHealth) -> str:
    debt = table.debt
    if debt.index_entries is None:
        return ""
    return share_text(debt.rows - debt.index_lag_rows, debt.rows) if debt.rows else "no rows"


def _publication(table: TableHealth) -> str:
    debt = table.debt
    if not debt.published_version:
        return "Not published yet."
    lag = _publication_summary(table)
    return f"Readers see version {debt.published_version:,}: {lag}."


def _publication_summary(table: TableHealth) -> str:
    debt = table.debt
    if debt.published_version is None:
        return ""
    if not debt.published_version:
        return "not yet"
    return f"{duration_text(debt.publication_lag_us)} behind" if debt.publication_lag_us else "up to date"
