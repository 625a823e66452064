"""Mutations of publications as Iceberg."""

# ruff: noqa: E501  # quotes lines of the full length

from __future__ import annotations

from mutations.mutation import Mutation, mutation

PUBLICATIONS: tuple[Mutation, ...] = (
    mutation(
        "a published version is not pinned",
        "a version is pinned before it is published",
        "iceberg/publication.py",
        "        pin_version(self._context, self._manifest, self._entry.uuid)\n",
        "",
    ),
    mutation(
        "the pin of the published version is removed with those before it",
        "only pins of versions before the published one are removed",
        "iceberg/publication_directory.py",
        "(self.before is None or tag.version < self.before)",
        "(self.before is None or tag.version <= self.before)",
    ),
    mutation(
        "the number of hidden rows does not count in a manifest of deletes",
        "the identity of delete files is their data files with the numbers of their hidden rows",
        "iceberg/file_groups.py",
        'f"{uuid}:{count}" for uuid, count in self.deleted.items()',
        "self.deleted",
    ),
    mutation(
        "delete files are carried over whatever they hide",
        "a delete file is carried over if it hides as many rows of each of its data files as the version",
        "iceberg/manifest_writer.py",
        "if coverage.get(uuid) != count}",
        "if not coverage.get(uuid)}",
    ),
    mutation(
        "deletion vectors are carried over whatever they hide",
        "a deletion vector is carried over if it hides as many rows as the version",
        "iceberg/manifest_writer.py",
        " and group.deleted.get(file.uuid) == entry.rows:",
        " and file.uuid in group.deleted:",
    ),
    mutation(
        "manifests are carried over a restore",
        "nothing is carried over when hidden rows may be shown again",
        "iceberg/publication.py",
        "            or metadata.current.epoch != self._entry.epoch\n",
        "",
    ),
    mutation(
        "manifests are the same for any files of a segment",
        "the identity of a manifest of a segment includes the indexes of its files",
        "iceberg/file_groups.py",
        "group.segment.object], group.indexes.tobytes())",
        'group.segment.object], b"")',
    ),
    mutation(
        "rows that only tombstones hide are shown",
        "rows that only tombstones hide are found and published as deleted",
        "iceberg/file_groups.py",
        "            elif suspects:\n",
        "            elif suspects and not file.rows:\n",
    ),
    mutation(
        "deletes have the sequence number of the files",
        "deletes apply to data files with the same or a lower sequence number",
        "iceberg/manifest_writer.py",
        "            self.writer.snapshot,\n            self.writer.sequence,\n            POSITION_DELETES,\n            bounds,\n",
        "            self.writer.snapshot,\n            1,\n            POSITION_DELETES,\n            bounds,\n",
    ),
    mutation(
        "a publication replaces existing metadata",
        "the metadata is created with If-None-Match: of two publishers with one number one wins",
        "iceberg/publication_directory.py",
        "            if stored is not None:\n                return False\n",
        "            if stored is not None:\n                break\n",
    ),
    mutation(
        "publications are not compared",
        "a version that shows other rows than the published one is published",
        "iceberg/publication.py",
        "            current.state == self._state\n            and current.version == max(pins, default=0)",
        "            current.version == max(pins, default=0)",
    ),
    mutation(
        "columns are those of the last publication",
        "a snapshot has the schema of its version",
        "iceberg/metadata.py",
        'next((each["schema-id"] for each in self.schemas if each["fields"] == fields), None)',
        'next((each["schema-id"] for each in self.schemas if len(each["fields"]) == len(fields)), None)',
    ),
    mutation(
        "columns with a default are published in v2",
        "Iceberg v2 knows no defaults: such columns are left out",
        "iceberg/metadata.py",
        "        if version == 2:\n",
        "        if version == 1:\n",
    ),
    mutation(
        "bounds are one too small",
        "bounds hold for all rows of a file",
        "iceberg/manifests.py",
        "    least, greatest = bounds.min, bounds.max\n",
        "    least, greatest = bounds.min, bounds.max - 1 if type(bounds.max) is int else bounds.max\n",
    ),
    mutation(
        "row ids are given out twice",
        "no two rows of a snapshot in v3 have one row id",
        "iceberg/publication.py",
        "                    self._next_row_id += file.rows\n",
        "                    self._next_row_id += file.live_rows\n",
    ),
    mutation(
        "all vectors are of the first data file",
        "a Puffin file names the data file whose rows it deletes",
        "iceberg/manifest_writer.py",
        "        body = encode_puffin(blob, data_file, len(positions))\n",
        "        body = encode_puffin(blob, data_file[:-8], len(positions))\n",
    ),
    mutation(
        "delete files have no partition",
        "a delete file has the partition of its data files",
        "iceberg/manifest_writer.py",
        "self.partitions.get(path) or carried.get(path, UNPARTITIONED)",
        "UNPARTITIONED",
    ),
    mutation(
        "delete files of carried-over data files have no partition",
        "the partitions of data files in carried-over manifests are read from these",
        "iceberg/manifest_writer.py",
        "carried = self.base.find_partitions(self.groups.identity(group))",
        "carried: dict[str, FilePartition] = {}",
    ),
    mutation(
        "collection deletes needed delete files",
        "the manifests that the newest metadata names are kept, and the delete files in them",
        "iceberg/publication_upkeep.py",
        "                needed.update(directory.key(entry.path) for entry in body.entries)\n",
        "                needed.update(directory.key(entry.path) for entry in body.entries[1:])\n",
    ),
)
