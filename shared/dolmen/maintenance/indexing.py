"""Indexing: makes and merges the parts of a table's index, for tables with the property ``index``.

New files get a part of their own, and parts of similar size are merged (log-structured), so that an entry is written a
logarithmic number of times. Each part is one commit. Readers see no change, and nothing waits for an index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dolmen.commit.context import Context
from dolmen.commit.loop import submit
from dolmen.format.manifest import Manifest, Segment
from dolmen.format.properties import has_index
from dolmen.maintenance import never
from dolmen.maintenance.index_version import IndexVersion, PartBuilding, index_reader

MOST_LOST = 3
"""After so many commits that had no effect, since others have changed the index, a run stops."""


@dataclass(frozen=True)
class Indexed:
    """The result of a run.

    Args:
        table: its name.
        files: data files that were read.
        entries: entries that were written, those of merged parts included.
        commits: number of versions made.
        finished: False when it stopped early: call it again.
    """

    table: str
    files: int
    entries: int
    commits: int
    finished: bool


def index_table(context: Context, name: str, *, deadline: Callable[[], bool] = never) -> Indexed:
    """Brings a table's index up to its newest version; removes the index if the table is to have none.

    Args:
        deadline: asked before each part; when it returns True, the rest is left.

    Raises:
        TableNotFoundError: no such table.
        CorruptionError: a data file, or a part of the index, is damaged or missing.
    """
    run = _Indexing(context, name)
    lost, manifest = 0, context.head.refresh().manifest
    while (work := run.next_work(manifest)) is not None:
        if deadline():
            return Indexed(name, run.files, run.entries, run.commits, finished=False)
        with context.reading(manifest.version):
            landed = work()
        lost += not landed
        if lost == MOST_LOST:
            return Indexed(name, run.files, run.entries, run.commits, finished=False)
        manifest = (context.head.cached or context.head.refresh()).manifest
    return Indexed(name, run.files, run.entries, run.commits, finished=True)


@dataclass
class _Indexing:
    """One call of ``index_table``."""

    context: Context
    name: str
    files: int = 0
    entries: int = 0
    commits: int = 0
    tried: set[str] = field(default_factory=set)
    """Uuids of files that were read."""

    def __post_init__(self) -> None:
        self._reader = index_reader(self.context)

    def next_work(self, manifest: Manifest) -> Callable[[], bool] | None:
        """The next piece of work on a version, which says whether its commit landed; None when all is done."""
        version = IndexVersion.of(self.context, self.name, manifest, self._reader)
        useless = version.useless()
        if useless:
            return lambda: self._put(version, useless, None)
        if not has_index(version.entry):
            return None
        following = version.to_build(self.tried)
        return (lambda: self._build(version, following[0])) if following else None

    def _build(self, version: IndexVersion, building: PartBuilding) -> bool:
        self.tried.update(file.uuid for file in building.files)
        self.files += len(building.files)
        now_us = self.context.store.clock.now_us
        return self._put(version, building.parts, version.build(building), now_us)

    def _put(
        self,
        version: IndexVersion,
        inputs: Sequence[Segment],
        output: Segment | None,
        first_upload_us: int | None = None,
    ) -> bool:
        """Commits a part in place of others. Says whether that landed."""
        outputs = () if output is None else (output,)
        statement = version.put(inputs, outputs)
        if submit(self.context.head, "index", [statement], first_upload_us=first_upload_us).manifest is None:
            return False
        self.commits += 1
        self.entries += sum(part.count for part in outputs)
        return True
