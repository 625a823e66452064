"""An actor that publishes tables as Iceberg, and changes how they are published."""

from __future__ import annotations

from typing import Any

from dolmen.iceberg.publication import IcebergPublication, publish
from dolmen_simulator.actors.upkeep import Upkeep
from dolmen_simulator.actors.writers import NAMES
from dolmen_simulator.judge.model import SettingsEffect
from dolmen_simulator.judge.never import Never, ViolationError
from dolmen_simulator.world.process import Process

_SETTINGS: tuple[dict[str, Any], ...] = (
    {"iceberg": "v2"},
    {"iceberg": "v3"},
    {"iceberg": None},
    {"iceberg_snapshots": "kept"},
    {"iceberg_snapshots": "newest"},
)


class Publisher(Upkeep):
    """Publishes tables; sometimes again from the start, or only to check whether there is something to publish."""

    def turn(self, process: Process) -> None:
        """Makes one publication, or one change of settings."""
        name = self.target(process, NAMES)
        if name is None or not process.ledger.version or self.random.random() < 0.2:
            return
        if self.random.random() < 0.15:
            changes = self.random.choice(_SETTINGS)
            process.write(
                f"set {name} {changes}",
                [SettingsEffect(name, changes)],
                lambda: process.db.table(name).set(**changes),
            )
            return
        began = process.ledger.version
        anew, dry_run = self.random.random() < 0.05, self.random.random() < 0.05
        found = process.upkeep("publish", lambda: publish(process.context, name, anew=anew, dry_run=dry_run), (name,))
        if found is not None and not dry_run:
            self._check(process, found, began)

    @staticmethod
    def _check(process: Process, found: IcebergPublication, began: int) -> None:
        """Checks an answer: readers see that version, or a later one, as long as the table is there, and the rows of a
        version that was the newest during the call."""
        publications, table = process.ledger.publications, found.metadata_location.split("/")[-3]
        if not publications.is_of(table, found.version, range(began, process.ledger.version + 1)):
            raise ViolationError(
                Never.MISREPORTED, f"version {found.version} of {found.table!r} was published as if it were the newest"
            )
        shown = publications.newest_version(table)
        if 0 < shown < found.version:
            raise ViolationError(
                Never.MISREPORTED, f"version {found.version} of {found.table!r} was published; readers see {shown}"
            )
