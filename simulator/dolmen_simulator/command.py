"""The command ``dolmen simulate``, which runs simulated histories and reports on them."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.columns import Columns
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from dolmen.base.records import replace
from dolmen.base.runtime import shared_runtime
from dolmen.cli.options import Json, add_examples
from dolmen.cli.output import console, errors, print_json
from dolmen.errors import InputError

if TYPE_CHECKING:
    from dolmen_simulator.simulation import HistorySummary
    from dolmen_simulator.world.replay import HistoryFailure, Replay

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, pretty_exceptions_enable=False)

_COLOURS = {"note": "dim", "commit": "green", "violation": "bold red"}


@app.command()
def simulate(
    seed: Annotated[Optional[int], typer.Option(help="Seed of all random numbers; random by default.")] = None,  # noqa: UP045
    steps: Annotated[int, typer.Option(min=1, help="Requests to the store in each history.")] = 2_000,
    histories: Annotated[int, typer.Option(min=1, help="Number of histories, with consecutive seeds.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    shrink: Annotated[bool, typer.Option("--shrink/--no-shrink", help="Shrink a failing history.")] = True,
    seconds: Annotated[float, typer.Option(min=0, help="Time limit for shrinking.")] = 60.0,
    only: Annotated[str, typer.Option(help="Only these actors take part: appender-1,compactor-2.")] = "",
    without: Annotated[str, typer.Option(help="Leave out these kinds of faults: crash,late,... or all.")] = "",
    trace: Annotated[str, typer.Option(help="Number of events of a failing history to show, or all.")] = "60",
    actors: Annotated[str, typer.Option(help="Show only events of these actors.")] = "",
    as_json: Json = False,
) -> None:
    """Run databases in a simulated world of faults, and check what must never happen. Exit code 1 if it does."""
    from dolmen_simulator.world.replay import HistoryFailure, Replay

    keep = _events(trace)
    first = shared_runtime().random.randrange(10**9) if seed is None else seed
    whole = Replay(first, steps, _names(only) or None, _names(without))
    counts, weather = Counter[str](), Counter[str]()
    failure: HistoryFailure | None = None
    with _bar(histories, as_json) as advance:
        for found in _all([replace(whole, seed=first + number) for number in range(histories)], jobs, keep):
            if isinstance(found, HistoryFailure):
                failure = found
                break
            counts += found.counts + Counter(steps=found.steps)
            weather[found.weather] += 1
            _print_summary(found, as_json, one=histories == 1)
            advance()
    if counts and not as_json:
        _print_counts(counts, weather)
    if failure is None:
        return
    if not as_json:
        errors.print(f"[bold red]{escape(_title(failure))}[/]", highlight=False, soft_wrap=True)
        errors.print(f"replay: {failure.replay.command}", highlight=False, soft_wrap=True)
    _print_failure(_shrunk(failure, keep, seconds, as_json) if shrink else failure, _names(actors), as_json)
    raise typer.Exit(1)


def _all(replays: list[Replay], jobs: int, keep: int | None) -> Iterator[HistorySummary | HistoryFailure]:
    from dolmen_simulator.shrinking import run

    if jobs == 1:
        yield from (run(replay, keep=keep) for replay in replays)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(replays)), mp_context=spawn) as pool:
        try:
            yield from pool.map(partial(run, keep=keep), replays)
        finally:
            pool.shutdown(cancel_futures=True)


def _shrunk(failure: HistoryFailure, keep: int | None, seconds: float, quiet: bool) -> HistoryFailure:
    from dolmen_simulator.shrinking import shrink

    if quiet or not errors.is_terminal:
        return shrink(failure, keep=keep, seconds=seconds).failure
    with errors.status("making it small ...") as status:

        def tell(smallest: HistoryFailure, tried: int) -> None:
            replay = smallest.replay
            without = f", without {','.join(replay.without)}" if replay.without else ""
            status.update(
                f"making it small: {tried} histories tried, {replay.steps:,} steps, "
                f"{len(smallest.actors)} actors{without}"
            )

        done = shrink(failure, keep=keep, seconds=seconds, progress=tell)
    errors.print(f"{done.histories} histories tried{'' if done.finished else f', until {seconds:g} s were over'}")
    return done.failure


def _print_summary(summary: HistorySummary, as_json: bool, *, one: bool) -> None:
    facts = {"seed": summary.seed, "steps": summary.steps, "weather": summary.weather, "digest": summary.digest}
    if as_json:
        print_json(facts | {"counts": dict(sorted(summary.counts.items()))})
    elif one:
        console.print(
            f"seed {summary.seed}: {summary.steps:,} steps, {summary.weather}, digest {summary.digest}",
            highlight=False,
        )


def _print_counts(counts: Counter[str], weather: Counter[str]) -> None:
    """Prints the counts of all histories together."""
    names = ", ".join(f"{number:,} {name}" for name, number in sorted(weather.items()))
    console.print(f"nothing happened that must never happen in {weather.total():,} histories: {names}", highlight=False)
    console.print(
        Columns([f"{number:>9,} {name}" for name, number in sorted(counts.items())], column_first=True, padding=(0, 2)),
        highlight=False,
    )


def _print_failure(failure: HistoryFailure, actors: tuple[str, ...], as_json: bool) -> None:
    from dolmen_simulator.world.trace import document, lines

    if as_json:
        print_json(
            {
                "seed": failure.replay.seed,
                "never": failure.never.name if failure.never else None,
                "reason": failure.reason,
                "step": failure.step,
                "digest": failure.digest,
                "command": failure.replay.command,
                "actors": failure.actors,
                "trace": [document(event) for event in failure.events],
            }
        )
        return
    for event, line in lines(failure.events, actors):
        console.print(Text(line, _COLOURS.get(event.kind, "")), soft_wrap=True)
    console.print(f"[bold red]{escape(_title(failure))}[/]", highlight=False, soft_wrap=True)
    console.print(f"replay: [bold]{failure.replay.command}[/]", highlight=False, soft_wrap=True)


def _title(failure: HistoryFailure) -> str:
    what = f"{failure.never.name}: {failure.never.value}" if failure.never else "an unexpected error"
    return f"seed {failure.replay.seed}, step {failure.step:,}: {what}"


@contextmanager
def _bar(histories: int, quiet: bool) -> Iterator[Any]:
    columns = SpinnerColumn(), TextColumn("histories"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    hidden = quiet or not errors.is_terminal
    with RichProgress(*columns, console=errors, disable=hidden, transient=True) as bar:
        task = bar.add_task("", total=histories)
        yield lambda: bar.advance(task)


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def _events(text: str) -> int | None:
    if text == "all":
        return None
    try:
        return max(int(text), 0)
    except ValueError as error:
        raise InputError(f"--trace {text!r}: a number of events, or all") from error


add_examples(app)


def run(arguments: list[str]) -> int:
    """Runs ``dolmen simulate`` with these arguments.

    Returns:
        The exit code: 1 if something happened that must never happen.
    """
    return int(app(args=arguments, prog_name="dolmen simulate", standalone_mode=False) or 0)
