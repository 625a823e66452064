"""The page about the health of a local pipeline: its database, its rejects and its dead letters."""

from __future__ import annotations

from dolmen.api.database import Database
from dolmen.base.runtime import Runtime
from dolmen.ingest.pipeline_health import look_at_queue, look_at_rejects
from dolmen.maintenance.health.health import Pipeline, QueuePlace
from dolmen.maintenance.health.page.document import draw_page
from dolmen.service.local.layout import LocalLayout
from dolmen.store.url import open_store


class LocalHealthPage:
    """Looks at a pipeline's database and directories, and draws the page. What does not change is read once.

    Args:
        layout: its directories.
    """

    def __init__(self, layout: LocalLayout, runtime: Runtime) -> None:
        self._layout, self._runtime = layout, runtime
        self._database = Database(open_store(layout.database, runtime), runtime)

    def draw(self) -> str:
        """The page of now. Raises CorruptionError, StoreUnavailableError and others, as ``Database.health``."""
        return draw_page(self._database.health(self._pipeline()), link_to_itself=True)

    def _pipeline(self) -> Pipeline:
        layout, runtime = self._layout, self._runtime
        deletes = look_at_queue("delete requests", str(layout.queue), runtime)
        return Pipeline(look_at_rejects(str(layout.rejected), runtime), (self._drops(), deletes))

    def _drops(self) -> QueuePlace:
        """Files of the landing directory are no messages: only those that were given up are counted."""
        layout = self._layout
        try:
            dead = sum(1 for _ in layout.dead_letters.glob("ingest-*.json"))
        except OSError as error:
            return QueuePlace("drops", str(layout.landing), problem=f"{type(error).__name__}: {error}")
        return QueuePlace("drops", str(layout.landing), dead=dead, dead_letters=str(layout.dead_letters))
