"""Judges publications: what Iceberg's readers find is the version that it names, and stays while it is published.

A publication is what the newest ``v<N>.metadata.json`` and the hint name, until its table is dropped. It is read when
either lands, and every removal of an object is held against it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dolmen.store.memory import MemoryBucket
from dolmen_simulator.judge.columns import GENERATION, added_columns
from dolmen_simulator.judge.content import Content, Values
from dolmen_simulator.judge.erasing import LandedErasure
from dolmen_simulator.judge.iceberg import HINT, PREFIX, IcebergReader, IcebergTable, MalformedError
from dolmen_simulator.judge.model import Row, State, TableRows, struct_of
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.judge.retention import JITTER_US, Retention, setting
from dolmen_simulator.judge.stored import StoredVersion

PINS = "iceberg."
"""Names of tags that begin with this keep published versions."""

_METADATA = re.compile(r"iceberg/([0-9a-f]{32})/metadata/v([1-9][0-9]*)\.metadata\.json")
_OWN = ("k", "v", "u", "t")


@dataclass
class Published:
    """The publication of one table.

    Args:
        number: the N of the newest metadata; 0 if there is none.
        hint: the N that the hint names; 0 if there is none.
        versions: the published version by N.
        needs: keys that must stay while readers find them, by N.
        replaced: by N, when it was last the newest one or the hint's, by the server's clock.
    """

    number: int = 0
    hint: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    needs: dict[int, frozenset[str]] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)

    @property
    def shown(self) -> set[int]:
        """The numbers of the metadata that readers find."""
        return {self.number, self.hint} & self.needs.keys()


class VersionFacts(NamedTuple):
    """Facts about a version that its snapshot must have.

    Args:
        names: the table's name by its uuid.
    """

    commit_ts: int
    created_at: int
    commit_id: str
    names: Mapping[str, str]


class Publications:
    """The publications of all tables.

    Args:
        states: the expected tables of all versions, which grow.
        seen: a version as a reader sees it that knows another version.
        erasures: all erasures so far, which grow.
        settings: the settings of all versions, which grow.
    """

    def __init__(
        self,
        bucket: MemoryBucket,
        content: Content,
        retention: Retention,
        states: Sequence[State],
        seen: Callable[[int, int], State],
        erasures: Sequence[LandedErasure],
        settings: Sequence[dict[str, Any]],
        counts: Counter[str],
    ) -> None:
        self._bucket, self._retention, self._counts = bucket, retention, counts
        self._states, self._seen, self._erasures, self._settings = states, seen, erasures, settings
        self._reader = IcebergReader(bucket, content)
        self._facts: list[VersionFacts] = [VersionFacts(0, 0, "", {})]
        self._tables: dict[str, Published] = {}
        self._pins: frozenset[str] = frozenset()
        self._dropped = set[str]()

    def record_version(self, view: StoredVersion) -> None:
        """Records a version that has landed, and checks its pins. Raises ViolationError."""
        manifest = view.manifest
        self._pins = frozenset(name for name in manifest.tags if name.startswith(PINS))
        names = {table.uuid: name for name, table in view.tables.items()}
        self._facts.append(VersionFacts(manifest.commit_ts, manifest.created_at, manifest.commit_id, names))
        for table in self._tables.keys() - names.keys():
            del self._tables[table]  # dropped: its publication may go
            self._dropped.add(table)
        for table, published in self._tables.items():
            for number in published.shown:
                version = published.versions[number]
                if f"{PINS}{table}.{version}" not in manifest.tags and number == published.number:
                    raise ViolationError(
                        Never.MISPUBLISHED,
                        f"version {manifest.version} has no pin of version {version}, which is published",
                    )

    def check_pins(self, view: StoredVersion, before: Iterable[str], *, is_background: bool) -> None:
        """Raises ViolationError if a commit that publishes nothing gives or takes pins."""
        pins = {name for name in view.manifest.tags if name.startswith(PINS)}
        changed = pins ^ {name for name in before if name.startswith(PINS)}
        if changed and not (is_background and view.manifest.operation == "publish"):
            raise ViolationError(Never.MISPUBLISHED, f"version {view.manifest.version} changed {sorted(changed)}")

    def record_put(self, key: str, now_us: int) -> None:
        """Records an object that has landed; metadata or a hint is a publication, which is read. Raises ViolationError.

        Args:
            now_us: the server's clock.
        """
        if not key.startswith(PREFIX):
            return
        if match := _METADATA.fullmatch(key):
            table, number = match[1], int(match[2])
            if table in self._facts[-1].names:
                self._publish(table, number, now_us)
        elif key.endswith(f"/{HINT}"):
            table = key.split("/")[1]
            if table in self._facts[-1].names:
                self._point(table, int(self._bucket.objects[key].body), now_us)

    def check_delete(self, key: str, now_us: int) -> None:
        """Checks a delete just before it happens. Raises ViolationError.

        Args:
            now_us: the server's clock.
        """
        for table, published in self._tables.items():
            for number in published.shown:
                if key in published.needs[number]:
                    raise ViolationError(
                        Never.MISPUBLISHED,
                        f"{key} was deleted, which v{number}.metadata.json of table {self._name(table)!r} needs; the "
                        f"newest is {published.number}, and the hint names {published.hint}",
                    )
            if key.startswith(PREFIX):
                self._check_grace(published, key, now_us)

    def check_all(self) -> None:
        """Reads everything that is published. Raises ViolationError."""
        for table, published in self._tables.items():
            for number in published.shown:
                self._check(table, number)

    def check_there(self) -> None:
        """Raises ViolationError unless all objects of everything that is published exist."""
        for table, published in self._tables.items():
            for number in published.shown:
                missing = published.needs[number] - self._bucket.objects.keys()
                if missing:
                    raise ViolationError(
                        Never.MISPUBLISHED, f"{self._key(table, number)} needs {sorted(missing)[:3]}: not there"
                    )

    def newest_version(self, table: str) -> int:
        """The published version of a table, by its uuid; 0 if there is none."""
        published = self._tables.get(table)
        return published.versions.get(published.number, 0) if published else 0

    def is_of(self, table: str, version: int, versions: Iterable[int]) -> bool:
        """Whether a table had the same rows and columns in a version as in one of others, or was not in all of them."""
        shown = self._rows_in(table, version)
        return any((there := self._rows_in(table, each)) is None or there == shown for each in versions)

    def _rows_in(self, table: str, version: int) -> tuple[Any, ...] | None:
        name = self._facts[version].names.get(table)
        if name is None:
            return None
        found = self._states[version][name]
        return set(found.rows), [column.name for column in found.columns]

    def leftovers(self) -> set[str]:
        """The objects of publications that nothing needs: no reader finds them, and no pin keeps their version."""
        needed = set[str]()
        for table, published in self._tables.items():
            pinned = {n for n, version in published.versions.items() if f"{PINS}{table}.{version}" in self._pins}
            for number in (published.shown | pinned) & published.needs.keys():
                needed |= published.needs[number]
        there = self._facts[-1].names.keys()
        for table in (there - self._tables.keys()) | (there & self._dropped):
            needed |= self._needs_of_restored(table)
        return {key for key in self._bucket.objects if key.startswith(PREFIX)} - needed

    def _needs_of_restored(self, table: str) -> frozenset[str]:
        """The keys of what a table needs that was dropped, and restored before its publication was gone.

        It needs its newest metadata, and that of versions which are still pinned.
        """
        numbers = sorted(
            int(match[2])
            for key in self._bucket.objects
            if (match := _METADATA.fullmatch(key)) is not None and match[1] == table
        )
        needed = frozenset[str]()
        for number in numbers:
            version = self._reader.table(self._key(table, number)).found["current-snapshot-id"]
            if number == numbers[-1] or f"{PINS}{table}.{version}" in self._pins:
                needed |= self._needs(table, number, self._check(table, number))
        return needed

    def _publish(self, table: str, number: int, now_us: int) -> None:
        published = self._tables.setdefault(table, Published())
        metadata = self._check(table, number)
        version = metadata.found["current-snapshot-id"]
        known = published.versions.get(published.number, 0)
        published.versions[number] = version
        published.needs[number] = self._needs(table, number, metadata)
        self._counts["publications"] += 1
        if number <= published.number:
            published.replaced[number] = now_us
            return  # it came late: readers continue from the hint
        if version < known:
            raise ViolationError(
                Never.MISPUBLISHED, f"{self._key(table, number)} puts version {version} in place of {known}"
            )
        published.replaced[published.number] = now_us
        published.number = number

    def _point(self, table: str, number: int, now_us: int) -> None:
        published = self._tables.get(table)
        if published is None:
            return  # a late publication of a table that was dropped in the meantime
        if number < published.hint:
            raise ViolationError(
                Never.MISPUBLISHED, f"the hint of {self._name(table)!r} goes from {published.hint} back to {number}"
            )
        if published.hint:
            published.replaced[published.hint] = now_us
        published.hint = number
        self._check(table, number)

    def _check(self, table: str, number: int) -> IcebergTable:
        """Reads metadata with its current snapshot, and with one of the earlier ones, if there are some."""
        key = self._key(table, number)
        try:
            found = self._reader.table(key)
            document, current = found.found, found.current
            if document["table-uuid"].replace("-", "") != table:
                raise MalformedError(f"it is of table {document['table-uuid']}")
            if (current["schema-id"], current["sequence-number"]) != (
                document["current-schema-id"],
                document["last-sequence-number"],
            ):
                raise MalformedError("its current snapshot has another schema, or is not its newest")
            earlier = [one for one in document["snapshots"] if one is not current and self._may_be_read(one)]
            for snapshot in [current, *earlier[:1]]:
                self._check_snapshot(table, found, snapshot)
        except MalformedError as error:
            raise ViolationError(Never.MISPUBLISHED, f"{key}: {error}") from error
        except KeyError as error:
            raise ViolationError(Never.MISPUBLISHED, f"{key}: {error} is not there") from error
        self._counts["publications read"] += 1
        return found

    def _may_be_read(self, snapshot: dict[str, Any]) -> bool:
        """Whether the version of an earlier snapshot is kept."""
        return self._retention.is_kept(snapshot["snapshot-id"])

    def _check_snapshot(self, table: str, found: IcebergTable, snapshot: dict[str, Any]) -> None:
        version = snapshot["snapshot-id"]
        facts = self._facts[version]
        if (snapshot["sequence-number"], snapshot["timestamp-ms"], snapshot["summary"]["dolmen.commit-id"]) != (
            facts.commit_ts,
            facts.created_at // 1_000,
            facts.commit_id,
        ):
            raise MalformedError(f"snapshot {version} is of another commit, or of another time")
        if table not in facts.names:
            raise MalformedError(f"version {version} has no such table")
        name = facts.names[table]
        expected = self._states[version][name]
        fields = found.schema(snapshot["schema-id"])
        columns = [one for one in expected.columns if found.found["format-version"] == 3 or one.initial is None]
        if [each["name"] for each in fields] != [one.name for one in columns]:
            raise MalformedError(f"snapshot {version} has columns {[each['name'] for each in fields]}")
        rows = self._reader.rows(found, snapshot)
        ids = {each["name"]: each["id"] for each in fields}
        # The publisher sees the version without the rows that were erased by then.
        known = [version, *(erasure.version for erasure in self._erasures if erasure.version > version)]
        problems = [next(_differences(rows, ids, self._seen(version, one)[name]), "") for one in known]
        if all(problems):
            raise MalformedError(f"snapshot {version} shows other rows than its version: {problems[-1]}")

    def _needs(self, table: str, number: int, found: IcebergTable) -> frozenset[str]:
        """The keys that metadata needs: objects of all its snapshots, and the data files of the current one."""
        needs = {self._key(table, number), f"{PREFIX}{table}/metadata/{HINT}"}
        for snapshot in found.found["snapshots"]:
            needs |= self._reader.own_objects(found, snapshot)
        return frozenset(needs | self._reader.data_files(found, found.current))

    def _check_grace(self, published: Published, key: str, now_us: int) -> None:
        """Checks that what was replaced stays as long as readers may have it open."""
        grace_us = min(setting(properties, "reader_grace") for properties in self._settings[-20:])
        for number, replaced_us in published.replaced.items():
            needs = published.needs.get(number, frozenset())
            if number not in published.shown and key in needs and now_us < replaced_us + grace_us - JITTER_US:
                raise ViolationError(
                    Never.COLLECTED,
                    f"{key} was deleted {(replaced_us + grace_us - now_us) / 1e6} s before the grace of the readers "
                    f"of v{number}.metadata.json was over",
                )

    def _name(self, table: str) -> str:
        return self._facts[-1].names.get(table, table)

    @staticmethod
    def _key(table: str, number: int) -> str:
        return f"{PREFIX}{table}/metadata/v{number}.metadata.json"


def _differences(rows: Sequence[Values], ids: Mapping[str, int], expected: TableRows) -> Iterator[str]:
    """Yields differences between rows, by field id, and the rows of a table."""
    found = [Row(*(row[ids[name]] for name in _OWN)) for row in rows]
    if set(found) != set(expected.rows) or len(found) != len(expected.rows):
        missing, more = set(expected.rows) - set(found), set(found) - set(expected.rows)
        yield f"missing {sorted(row.u for row in missing)}, and too much {sorted(row.u for row in more)}"
    if strange := [row.u for row, values in zip(found, rows, strict=True) if struct_of(values[ids["s"]]) != row.s]:
        yield f"other structs in rows {strange}"
    for column in added_columns(expected.columns):
        if column.name in ids:
            for row, values in zip(found, rows, strict=True):
                value = values[ids[column.name]]
                if value not in (possible := expected.added[row.u % GENERATION][column.number]):
                    yield f"row {row.u} has {value} in column {column.name!r}, and not one of {possible}"
