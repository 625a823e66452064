"""The jar that gives catalogs to Spark programs without Python, and the Python process that it starts.

    python -m dolmen.spark.catalog_jar dolmen-spark-catalog.jar

builds it from the sources in ``spark-catalog/``. ``spark-sql`` and Spark's Thrift server load its class. Their JVM
starts a Python process, which calls ``serve``, and asks it for a catalog when a session first names one. The catalogs
are those of ``attach``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.catalog import Catalog as SparkCatalog

from dolmen.api.database import open as open_database
from dolmen.errors import InputError
from dolmen.spark.sql.attach_database import add_catalog
from dolmen.spark.sql.attachment import ATTACHED, session_id
from dolmen.spark.sql.catalog import jvm_objects
from dolmen.spark.sql.catalog.catalog import Catalog
from dolmen.spark.sql.catalog.jvm_objects import ScalaFunction, gateway_of
from dolmen.spark.sql.catalog.table_relations import ensure_rule
from pyspark_dolmen import DefaultSource

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject


NO_JDK = "the jar needs javac, of a JDK 17 or newer, and there is none: apt install openjdk-17-jdk-headless"
_WHEEL, _CHECKOUT = Path(__file__).parent / "catalog_sources", Path(__file__).parents[3] / "spark-catalog" / "src"


def build_jar(target: Path) -> None:
    """Compiles the jar against those of PySpark. Raises InputError: there is no JDK, or it refuses the sources."""
    javac = shutil.which("javac")
    if javac is None:
        raise InputError(NO_JDK)
    sources = sorted((_WHEEL if _WHEEL.exists() else _CHECKOUT).rglob("*.java"))
    with tempfile.TemporaryDirectory() as classes:
        jars = str(Path(pyspark.__path__[0], "jars", "*"))
        options = ["--release", "17", "-nowarn", "-proc:none", "-d", classes, "-cp", jars]
        command = [javac, *options, *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no text of users
        if done.returncode:
            raise InputError(f"javac does not compile the jar against PySpark {pyspark.__version__}: {done.stderr}")
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar:
            for path in sorted(Path(classes).rglob("*.class")):
                jar.write(path, path.relative_to(classes))


class _ServedSession(SparkSession):  # type: ignore[misc]
    """A session of the JVM's, which ends when the JVM drops it: a Thrift server has one for each connection."""

    def __init__(self, context: SparkContext, reference: JavaObject) -> None:
        self._reference = reference
        super().__init__(context, reference.get())

    @property
    def _jsparkSession(self) -> JavaObject:  # noqa: N802
        return self._reference.get()

    @_jsparkSession.setter
    def _jsparkSession(self, session: JavaObject) -> None:  # noqa: N802
        """It is found by its reference."""

    @property
    def catalog(self) -> SparkCatalog:
        return SparkCatalog(self)  # Spark's own property keeps it


def serve() -> None:
    """Serves the JVM whose port and token are in the environment, as PySpark has them, and ends with it."""
    SparkContext._ensure_initialized()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.callback_server_parameters.auth_token = gateway.gateway_parameters.auth_token
    jvm_objects.has_driver = False
    java = gateway.entry_point
    session = java.session()
    conf = SparkConf(_jvm=gateway.jvm, _jconf=session.sparkContext().conf())
    context = SparkContext(gateway=gateway, jsc=gateway.jvm.JavaSparkContext(session.sparkContext()), conf=conf)
    spark = SparkSession(context, session)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for Spark's statement
    gateway_of(spark)
    database_at, sessions = cache(open_database), dict[str, _ServedSession]()

    def open_catalog(request: Any) -> Catalog:
        reference, name, url = request
        for closed in [key for key, each in list(sessions.items()) if each._jsparkSession is None]:
            del sessions[closed], ATTACHED[closed]
        user = _ServedSession(context, reference)
        user = sessions.setdefault(session_id(user), user)
        database = database_at(url)
        ensure_rule(user)
        user.dataSource.register(DefaultSource)  # Spark looks for sources with PYSPARK_PYTHON alone
        add_catalog(user, database, name)
        return Catalog(user, database, name)

    java.setOpener(ScalaFunction(spark, open_catalog))
    sys.stdin.read()  # until the JVM ends
    os._exit(0)  # threads may wait for the JVM


if __name__ == "__main__":
    try:
        build_jar(Path(sys.argv[1] if len(sys.argv) > 1 else "dolmen-spark-catalog.jar"))
    except InputError as error:
        sys.exit(str(error))
