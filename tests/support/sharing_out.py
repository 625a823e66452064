"""Which process of ``pytest -n`` runs which test modules: what is dear to start is started in as few as can be.

A module stays together, and its fixtures with it. One process, or two of eight, begins a Spark session, and takes all
modules that need one, as long as there are any; the others take those only once nothing else is left. What takes
longest goes first, so that in the end none waits for the last.
"""

from __future__ import annotations

import os

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

MOST_WORKERS = 8

SPARK = (
    "tests/spark/",
    "tests/corruption/test_spark_reads.py",
    "tests/spark_s3/test_format.py",
    "tests/spark_s3/test_workers.py",
)
"""What needs the Spark session that all areas share."""

TOGETHER = (
    "tests/deploy/",
    "tests/handover/",
    "tests/minio/",
    "tests/packaged/",
    "tests/spark_cluster/",
    "tests/spark_s3/",
)
"""Folders whose fixtures serve all of their modules: each goes to one process as a whole."""

LONGEST_FIRST = (
    "tests/deploy/",
    "tests/spark/stream/test_killed.py",
    "tests/handover/",
    "tests/spark_cluster/",
    "tests/spark/test_settings.py",
    "tests/proof/test_processes.py",
    "tests/interleavings/test_pairs.py",
    "tests/interleavings/test_deliveries.py",
    "tests/packaged/",
    "tests/scan/test_keys_memory.py",
    "tests/docs/test_cli.py",
    "tests/docs/test_readme.py",
    "tests/spark_s3/",
    "tests/spark/merge/test_merge.py",
    "tests/spark/read/test_column_names.py",
    "tests/spark/load/test_job.py",
    "tests/spark/test_upkeep_jobs.py",
    "tests/simulation/test_simulation.py",
    "tests/minio/",
    "tests/docs/test_demo.py",
    "tests/soak/test_soak.py",
    "tests/isolation/test_processes.py",
    "tests/spark/test_races.py",
    "tests/store/test_credentials.py",
    "tests/corruption/test_damage.py",
    "tests/machine/test_machine.py",
    "tests/iceberg/test_histories.py",
    "tests/iceberg/test_killed.py",
    "tests/cli/test_check_store.py",
    "tests/store/test_contract.py",
    "tests/store/test_s3_faults.py",
    "tests/functions/test_every_drop_ends.py",
    "tests/proof/test_inserts.py",
    "tests/maintenance/compact/test_splice.py",
    "tests/maintenance/test_merge.py",
    "tests/maintenance/compact/test_histories.py",
    "tests/maintenance/compact/test_sort.py",
    "tests/local/test_page_server.py",
    "tests/simulation/test_shrinking.py",
    "tests/docs/test_reliability.py",
    "tests/corruption/test_publications.py",
    "tests/api/test_altered_histories.py",
    "tests/iceberg/test_other_writers.py",
    "tests/functions/test_bursts.py",
    "tests/scan/test_sql.py",
    "tests/spark/read/test_zones.py",
    "tests/spark/sql/test_sql.py",
    "tests/spark/write/test_overwrites.py",
    "tests/spark/compact/test_compaction.py",
    "tests/spark/read/test_adopted.py",
    "tests/spark/stream/test_streams.py",
    "tests/spark/write/test_read_modify_write.py",
    "tests/spark/test_requests.py",
    "tests/spark/sql/test_histories.py",
)


def count_workers(cores: int) -> int:
    """How many processes: two more than cores, since many tests wait for other processes, or for the clock."""
    return min(cores + 2, MOST_WORKERS)


def share_of(test: str) -> str:
    """The name of what goes to one process with a test: its module, or one of ``TOGETHER``."""
    module = test.partition("::")[0]
    folder = next((folder for folder in TOGETHER if module.startswith(folder)), module)
    return module if needs_spark(module) else folder


def needs_spark(share: str) -> bool:
    """Whether it needs the Spark session that all areas share."""
    return share.startswith(SPARK)


def place_of(share: str) -> int:
    """Its place among what takes long; what does not comes after that, as it was found."""
    return LONGEST_FIRST.index(share) if share in LONGEST_FIRST else len(LONGEST_FIRST)


class SharingOut(LoadScopeScheduling):
    """See the module."""

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._best_for(node), last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node in self.registered_collections:  # else it replaces one that died, and is still looking for tests
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Gives others what a process that died had left, without the test it died of, which xdist would repeat."""
        shares = self.assigned_work.pop(node)
        crashed = next((test for tests in shares.values() for test, done in tests.items() if not done), None)
        if crashed is None:
            return None
        shares[share_of(crashed)][crashed] = True
        self.workqueue.update({share: tests for share, tests in shares.items() if not all(tests.values())})
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _best_for(self, node: WorkerController) -> str:
        def began_spark(worker: WorkerController) -> bool:
            return any(map(needs_spark, self.assigned_work.get(worker, ())))

        takes_spark = began_spark(node) or sum(map(began_spark, self.nodes)) < max(1, len(self.nodes) // 4)
        return min(self.workqueue, key=lambda share: (needs_spark(share) != takes_spark, place_of(share)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means."""
    return count_workers(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SharingOut:
    """Instead of xdist's own, whatever ``--dist`` says."""
    config.option.loadscopereorder = False
    return SharingOut(config, log)
