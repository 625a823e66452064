"""Makes Python workers of Spark quick; Python imports it at its start, by its name.

PySpark is imported from where it is installed, not from its zip file: before each task a worker looks at all of its
importers again, and those of a zip file read its directory anew, which takes more time than most tasks of tests.
"""

import sys

sys.path[:] = [path for path in sys.path if not path.endswith(".zip")]
for path in [path for path in sys.path_importer_cache if ".zip" in path]:
    del sys.path_importer_cache[path]

if "pyspark.daemon" in sys.orig_argv:  # its forks are the workers, which need all of this
    import gc

    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pyspark.worker  # noqa: F401

    import dolmen.spark.tasks  # noqa: F401

    gc.freeze()  # a worker collects after each task
