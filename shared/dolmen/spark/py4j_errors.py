"""py4j's errors; stand-ins, which nothing raises, where it is not installed, as with pyspark-client."""

from __future__ import annotations

__all__ = ["Py4JError", "Py4JJavaError"]

try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ImportError:

    class Py4JError(Exception):  # type: ignore[no-redef]
        """An error of the bridge to the JVM."""

    class Py4JJavaError(Exception):  # type: ignore[no-redef]
        """An exception that was raised in the JVM."""
