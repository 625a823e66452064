"""The bytes below a place, past every format."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.fs as pafs

from bench.peers.peer import S3, Place


def s3_filesystem(s3: S3) -> pafs.S3FileSystem:
    """The server as pyarrow reads it."""
    return pafs.S3FileSystem(
        access_key=s3.access_key,
        secret_key=s3.secret_key,
        region=s3.region,
        scheme="http",
        endpoint_override=s3.endpoint.removeprefix("http://"),
        request_timeout=60,
        connect_timeout=10,
        allow_bucket_creation=True,
    )


def filesystem(place: Place) -> tuple[pafs.FileSystem, str]:
    """A place as pyarrow reads it, and the path in it."""
    if place.s3 is None:
        return pafs.LocalFileSystem(), place.url
    return s3_filesystem(place.s3), place.url.removeprefix("s3://")


@dataclass(frozen=True)
class Stored:
    """The files or objects below a place."""

    objects: int
    bytes: int


def stored(place: Place) -> Stored:
    """Lists a place."""
    files, path = filesystem(place)
    found = files.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
    sizes = [info.size for info in found if info.type == pafs.FileType.File]
    return Stored(len(sizes), sum(sizes))
