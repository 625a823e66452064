"""The kinds of stores that a URL can name: one entry for each.

``dolmen.store.url`` opens them; ``tests/project/test_schemes.py`` checks that it can open each. This module imports
nothing of dolmen.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scheme:
    """One kind of stores.

    Args:
        name: what stands before ``://``.
        form: the URL, as messages show it.
        is_shared: whether other processes open the same store by its URL.
        hadoop: the scheme by which Hadoop, and so Spark's own readers, know such places; None if they do not.
        is_quoted: whether the path in a URL is percent-encoded.
        instead_of: schemes of other programs for the same stores, which errors translate.
    """

    name: str
    form: str
    is_shared: bool = True
    hadoop: str | None = None
    is_quoted: bool = False
    instead_of: tuple[str, ...] = ()


S3 = Scheme("s3", "s3://bucket/prefix", hadoop="s3a", instead_of=("s3a", "s3n"))
FILE = Scheme("file", "file:///directory", hadoop="file", is_quoted=True)
MEMORY = Scheme("memory", "memory://name", is_shared=False)

SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in (S3, FILE, MEMORY)}


def scheme_of(url: str) -> Scheme | None:
    """The scheme of a URL; None for a plain path, or a scheme that is not known."""
    name, separator, _ = url.partition("://")
    return SCHEMES.get(name) if separator else None
