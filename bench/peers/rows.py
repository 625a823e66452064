"""The seeded rows that every peer gets, and the rows after each change, computed by numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench.dataset import events
from bench.peers.peer import Ids, Sums

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES = (8, 13, 18, 23)


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Args:
        rows: of the table that is loaded at once.
        commits: small ones, of ``commit_rows`` rows each.
        files: that are registered without a copy; 0: none.
        keys, upserts: rows with UUID keys, and how many of them one upsert brings; 0: none.
        visits: rows that are clustered.
        rounds, round_rows: of the part that wears a table out, and the rows it begins with.
        seconds: a limit for each loop; other steps get twice that.
        long_seconds: a limit for an upsert by key.
    """

    rows: int
    commits: int
    files: int
    keys: int
    upserts: int
    rounds: int
    round_rows: int
    visits: int
    seconds: float
    long_seconds: float
    commit_rows: int = 100
    one_row_deletes: int = 100
    gets: int = 20

    @classmethod
    def of(cls, scale: float, *, remote: bool, seconds: float, long_seconds: float) -> Sizes:
        """Sizes at a scale: 1 is a whole run; on S3 the large ones are a quarter."""
        share = scale / 4 if remote else scale
        return cls(
            rows=max(2_000, int(4_000_000 * share)),
            commits=max(10, int(1_000 * scale)),
            files=0 if remote else max(20, int(10_000 * scale)),
            keys=0 if remote else max(2_000, int(10_000_000 * scale)),
            upserts=0 if remote else max(200, int(1_000_000 * scale)),
            visits=max(2_000, int(20_000_000 * scale)),
            rounds=max(4, int(50 * min(scale, 1))),
            round_rows=max(2_000, int(250_000 * scale)),
            seconds=seconds,
            long_seconds=long_seconds,
        )


class Oracle:
    """Which rows of a table with sequential ids are there, and what their sums are."""

    def __init__(self, rows: pa.Table) -> None:
        self.users: Ids = rows["user_id"].to_numpy()
        self.amounts = rows["amount"].to_numpy()
        self.alive = np.ones(len(self.users), bool)

    def append(self, rows: pa.Table) -> None:
        """Adds rows whose ids continue where the others end."""
        self.users = np.concatenate([self.users, rows["user_id"].to_numpy()])
        self.amounts = np.concatenate([self.amounts, rows["amount"].to_numpy()])
        self.alive = np.concatenate([self.alive, np.ones(rows.num_rows, bool)])

    def delete(self, ids: Ids | slice) -> None:
        """Takes rows away by their ids."""
        self.alive[ids] = False

    def delete_users(self, users: Ids) -> None:
        """Takes all rows of these users away."""
        self.alive &= ~np.isin(self.users, users)

    def upsert(self, rows: pa.Table) -> None:
        """Sets rows in place of those with their ids."""
        ids = rows["id"].to_numpy()
        new = int(ids.max(initial=-1)) + 1 - len(self.alive)
        if new > 0:
            self.users = np.concatenate([self.users, np.zeros(new, np.int64)])
            self.amounts = np.concatenate([self.amounts, np.zeros(new)])
            self.alive = np.concatenate([self.alive, np.zeros(new, bool)])
        self.users[ids], self.amounts[ids], self.alive[ids] = (
            rows["user_id"].to_numpy(),
            rows["amount"].to_numpy(),
            True,
        )

    def sums(self, low: int | None = None, high: int | None = None) -> Sums:
        """The answer of a right scan."""
        seen = slice(low, high)
        alive = self.alive[seen]
        return Sums(int(alive.sum()), int(self.users[seen][alive].sum()), float(self.amounts[seen][alive].sum()))


def event_rows(first: int, count: int, seed: int) -> pa.Table:
    """``count`` rows of the benchmark's table whose ids begin with ``first``."""
    rows = events(count, seed).combine_chunks()
    return rows.set_column(0, rows.schema.field("id"), pa.array(np.arange(first, first + count, dtype=np.int64)))


KEYED = pa.schema([pa.field("key", pa.string(), nullable=False), ("user_id", pa.int64()), ("amount", pa.float64())])


def keyed_rows(numbers: Ids, seed: int) -> pa.Table:
    """Rows with UUIDs as keys, one for each number; values follow from the seed."""
    rng = np.random.default_rng((seed, len(numbers)))
    users = rng.integers(0, 1 << 30, len(numbers))
    return pa.table([uuids(numbers), users, rng.integers(0, 10_000, len(numbers)) / 4], schema=KEYED)


def uuids(numbers: Ids) -> pa.Array:
    """A UUID for each number, in no order, as text."""
    halves = np.stack([_mixed(numbers.astype(np.uint64), 1), _mixed(numbers.astype(np.uint64), 2)], axis=1)
    octets = halves.astype(">u8").view(np.uint8).reshape(len(numbers), 16)
    text = np.full((len(numbers), 36), ord("-"), np.uint8)
    letters = [place for place in range(36) if place not in _DASHES]
    text[:, letters[::2]] = _HEX[octets >> 4]
    text[:, letters[1::2]] = _HEX[octets & 15]
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 36
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))


def _mixed(
    numbers: np.ndarray[tuple[int], np.dtype[np.uint64]], salt: int
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """SplitMix64 (Steele, Lea, Flood 2014): a permutation of 64 bits."""
    mixed = numbers + np.uint64(salt * 0x9E3779B97F4A7C15 % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
