"""The versions so far and their expected content: the ledger writes it, and its checks read it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from dolmen.store.memory import MemoryBucket
from dolmen_simulator.judge.content import Content
from dolmen_simulator.judge.model import OperationRun, State
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

    Args:
        bucket: the bucket.
        counts: counts of events, shared with the whole simulation.
    """

    def __init__(self, bucket: MemoryBucket, counts: Counter[str]) -> None:
        self.counts = counts
        self.chain: list[LandedVersion] = [LandedVersion("", "", 0, 0, None)]
        self.states: list[State] = [{}]
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
        self.publications = Publications(bucket, self.content, self.retention, self.states, self.settings, counts)
        self.upkeep_version = 0
        self.spilled_segments: set[str] = set()
        self.named_segments: set[str] = set()

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.chain) - 1
