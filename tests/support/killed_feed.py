"""A process with a streaming query that copies a table's change feed into another database, and is killed.

``python -m support.killed_feed URL LOG SCRATCH`` runs it on all that is there.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(url: str, log: str, scratch: str) -> None:
    import dolmen
    from dolmen.spark import batches_into
    from support.spark import start_session

    spark = start_session(Path(scratch) / "spark", "local[2]")
    options = {"table": "t", "changes": True, "startingVersion": 1, "maxVersionsPerTrigger": 4, "cursor": "log"}
    changes = spark.readStream.format("dolmen").options(**options).load(url)
    rows = changes.withColumnsRenamed({"_change": "what", "_version": "version"}).drop("_commit_ts")
    writer = rows.writeStream.foreachBatch(batches_into(dolmen.open(log).table("log")))
    while True:  # before Spark 4.2 one run is one batch
        query = writer.option("checkpointLocation", f"{scratch}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        offsets = [progress.sources[0] for progress in query.recentProgress]
        if all(source.startOffset == source.endOffset for source in offsets):
            break
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
