"""Decides by the options what a frame reads: the rows of a version, or the changes between two."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import types as s
from pyspark.sql.datasource import DataSourceReader

from dolmen.spark.source.batch_reader import reader
from dolmen.spark.source.feed_reader import PinnedFeed, feed_reader, pin_feed
from dolmen.spark.source.source import SourceTable, pin
from dolmen.spark.source.source_options import CHANGES_READ, CHANGES_STREAM_READ, READ, STREAM_READ, reads_changes


def pin_for_any(options: Mapping[str, str]) -> SourceTable | PinnedFeed:
    """Pins what a frame reads, for a batch or a stream: Spark does not say which of them it will be.

    Raises:
        InputError: options that are not there, or contradict each other.
        NotFoundError: no such database, table or version.
    """
    if reads_changes(options):
        return pin_feed(options, {*CHANGES_READ, *CHANGES_STREAM_READ})
    return pin(options, {*READ, *STREAM_READ})


def batch_reader(
    pinned: SourceTable | PinnedFeed | None, schema: s.StructType, options: Mapping[str, str]
) -> DataSourceReader:
    """Makes the reader of a batch.

    Args:
        pinned: what the frame has pinned; None if the user has given its schema.

    Raises:
        InputError, SchemaError, PredicateError: the options or the schema do not fit the table.
        NotFoundError: no such database, table or version.
    """
    if pinned is None:
        pinned = pin_feed(options) if reads_changes(options) else pin(options)
    if isinstance(pinned, SourceTable):
        return reader(pinned, schema, options)
    return feed_reader(pinned, schema, options)
