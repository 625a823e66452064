"""The versions so far and their expected content: the ledger writes it, and its checks read it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from dolmen.store.memory import MemoryBucket
from dolmen_simulator.judge.content import Content
from dolmen_simulator.judge.erasing import LandedErasure
from dolmen_simulator.judge.model import Identity, OperationRun, State
from dolmen_simulator.judge.publications import Publications
from dolmen_simulator.judge.recording import Recording
from dolmen_simulator.judge.retention import Retention
from dolmen_simulator.judge.stored import BucketReader, StoredCommit


class LandedVersion(msgspec.Struct, frozen=True):
    """A version as stored.

    Args:
        key: key of its manifest.
        commit: its record in the history of all later versions.
    """

    key: str
    commit_id: str
    commit_ts: int
    created_at: int
    run: OperationRun | None
    commit: StoredCommit | None = None


class Chronicle:
    """The chain of versions, with the expected rows and settings of each.

    ``states`` are the versions as they landed, ``erased`` the numbers of the rows that were erased since, by table.

    Args:
        bucket: the bucket.
        counts: counts of events, shared with the whole simulation.
    """

    def __init__(self, bucket: MemoryBucket, counts: Counter[str]) -> None:
        self.counts = counts
        self.chain: list[LandedVersion] = [LandedVersion("", "", 0, 0, None)]
        self.states: list[State] = [{}]
        self.erasures: list[LandedErasure] = []
        self.erased: set[tuple[Identity, int]] = set()
        self.settings: list[dict[str, Any]] = [{}]
        self.horizons: list[int] = [0]
        self.tags: list[dict[str, int]] = [{}]
        self.cursors: list[frozenset[str]] = [frozenset()]
        self.written_in: dict[int, int] = {}
        self.applied: dict[str, int] = {}
        self.digests: dict[str, str] = {}
        self.timestamp_answers: list[tuple[int, int]] = []
        self.reader, self.content = BucketReader(bucket), Content(bucket)
        self.recording = Recording()
        self.retention = Retention(bucket, self.reader, counts)
        self.publications = Publications(
            bucket, self.content, self.retention, self.states, self.visible_state, self.erasures, self.settings, counts
        )
        self.upkeep_version = 0
        self.spilled_segments: set[str] = set()
        self.named_segments: set[str] = set()
        self._seen: dict[tuple[int, int], State] = {}

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.chain) - 1

    def visible_state(self, version: int, known: int) -> State:
        """A version as a reader that knows version ``known`` sees it: without the rows that were erased in between."""
        since = [erasure for erasure in self.erasures if version < erasure.version <= known]
        if not since:
            return self.states[version]
        place = version, since[-1].version
        if place not in self._seen:
            state = self.states[version]
            for erasure in since:
                state = {name: erasure.reach.take_from(table) for name, table in state.items()}
            self._seen[place] = state
        return self._seen[place]
