"""The body of an answer to a GET: whole, and of the range that was asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ResponseStreamingError
from urllib3.exceptions import HTTPError

_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)")


def read_body(answer: Mapping[str, Any], asked: str | None) -> bytes:
    """Reads an answer's body to its end.

    Args:
        answer: as boto3 gives it.
        asked: the header ``Range`` of the request.

    Raises:
        BotoCoreError: it broke off, its checksum differs, or it is not what was asked for.
    """
    try:
        body: bytes = answer["Body"].read()
    except HTTPError as error:  # botocore translates only some of them
        raise ResponseStreamingError(error=error) from error
    got = answer.get("ContentRange")
    if asked is None and got is None:
        return body
    first, last = (int(end) for end in (asked or "bytes=0-0").removeprefix("bytes=").split("-"))
    if got is None:  # the server knows no ranges, which HTTP allows, and has sent the whole object
        return body[first : last + 1]
    found = _CONTENT_RANGE.fullmatch(got)
    if asked is not None and found is not None:
        start, end, size = int(found[1]), int(found[2]), found[3]
        ends = end == last or (end < last and size in ("*", str(end + 1)))
        if start == first and ends and len(body) == end + 1 - start:
            return body
    raise ResponseStreamingError(error=f"{len(body)} bytes came as {got!r}, and {asked or 'all'!r} was asked for")
