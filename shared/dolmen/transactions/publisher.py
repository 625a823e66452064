"""The publisher of tables for readers of another format, as erasures and background work know it.

Its module is above: its package names it here when ``dolmen.api`` is imported, and it is loaded when it is first used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from dolmen.commit.head import Context
from dolmen.errors import Error
from dolmen.format.manifest import Manifest, TableEntry
from dolmen.format.properties import DatabaseSettings
from dolmen.store.base import ObjectInfo


class PublicationProblem(NamedTuple):
    """A defect of a publication: the kind of finding, an object, the reason, and the table's name."""

    kind: str
    key: str
    reason: str
    table: str


@dataclass(frozen=True)
class PublicationLag:
    """How far a publication is behind.

    Args:
        version: the version that all readers see, or a later one; 0 if there is none yet.
        lag_us: age of the oldest known change that is not published, at the newest commit; 0 if none is known.
    """

    version: int
    lag_us: int


@dataclass(frozen=True)
class ErasurePublications:
    """The result of publishing the tables in which rows were erased.

    Args:
        published: the publications that show the rows no more.
        failures: errors by table. The erasure is done, and the next round of maintenance publishes these tables.
        postponed: tables that are left to the next round, for lack of time.
        by_hand: published tables without the setting ``iceberg``: readers of their publications see the rows until
            the table is published again, or collection deletes the publication.
    """

    published: tuple[Any, ...] = ()
    failures: dict[str, Error] = field(default_factory=dict)
    postponed: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()


class TablePublisher(ABC):
    """Publishes versions of tables, and keeps its objects in the database under ``prefix``."""

    prefix: str

    @abstractmethod
    def is_asked_for(self, context: Context, manifest: Manifest, entry: TableEntry) -> bool:
        """Whether a table's settings ask for publication after each round; ``entry`` is as the manifest has it."""

    @abstractmethod
    def publish(self, context: Context, name: str) -> Any:
        """Publishes the newest version of a table. The result has ``commits`` and ``finished``, like a step's."""

    @abstractmethod
    def publish_erasures(self, context: Context, ids: Collection[str]) -> ErasurePublications:
        """Publishes the tables in which erasures have just been committed."""

    @abstractmethod
    def lag(self, manifest: Manifest, name: str, entry: TableEntry) -> PublicationLag | None:
        """The lag of a table's publication, by its whole entry; None if it is neither published nor due."""

    @abstractmethod
    def published_before(self, context: Context, version: int) -> dict[str, bool]:
        """The publications that may hold values of versions before ``version``, by the table's uuid.

        True if only a new publication can replace it; ``sweep`` deletes the others in time.
        """

    @abstractmethod
    def sweep(
        self,
        context: Context,
        manifest: Manifest,
        settings: DatabaseSettings,
        now_us: int,
        erase: Callable[[Sequence[ObjectInfo]], bool],
        deadline: Callable[[], bool],
        *,
        full: bool,
        dry_run: bool,
    ) -> tuple[bool, dict[str, str]]:
        """Deletes objects that no reader of a publication needs any more.

        ``erase`` deletes objects, and says whether any could not be deleted; ``full`` also looks for publications
        without an entry in the manifest. Returns whether it finished before the deadline, and the reasons by key for
        what it could not delete.
        """

    @abstractmethod
    def check(self, context: Context, newest: Manifest) -> Iterator[list[PublicationProblem]]:
        """Yields the problems of each publication of the newest version's tables."""


_modules: list[str] = []


def register_publisher(module: str) -> None:
    """Names the module whose ``PUBLISHER`` is the publisher."""
    _modules[:] = [module]


@cache
def publisher() -> TablePublisher:
    """The publisher. It is an error if none is registered: receipts and collection would overlook its objects."""
    if not _modules:
        raise RuntimeError("no publisher is registered: import dolmen.api")
    instance: TablePublisher = import_module(_modules[0]).PUBLISHER
    return instance
