"""The store in a bucket of S3, or of a service with S3's protocol, and clients of other AWS services.

It is the only package that imports boto3, so others import it only for an AWS URL. Begin with
``dolmen.store.s3.bucket_store``; ``dolmen.store.s3.failures`` translates errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dolmen.errors import InputError


@contextmanager
def needing_boto3(what: str) -> Iterator[None]:
    """Imports modules that need botocore, which is an extra and slow to import. Raises InputError without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "botocore":
            raise
        raise InputError(f"{what} needs boto3: pip install 'dolmen[aws]'") from error


def aws_environment(*more: str) -> tuple[tuple[str, str], ...]:
    """The part of the environment that AWS clients depend on, with the variables that begin with one of ``more``."""
    prefixes = ("AWS_", "HOME", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", *more)
    return tuple(sorted(item for item in os.environ.items() if item[0].upper().startswith(prefixes)))
