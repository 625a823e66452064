"""Puts functions/ into the wheel, for `dolmen local`, and the sources of spark-catalog/, for its jar."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FUNCTIONS = sorted(Path("functions").glob("*/app.py"))
JAVA = sorted(Path("spark-catalog").rglob("*.java"))


class BuildWithFunctions(build_py):
    """Builds the package, and copies functions and Java beside the code that uses them."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout has them where they are
            local, spark = Path("service", "local", "handlers"), Path("spark", "catalog_sources")
            copies = [(app, local / app.parent.name) for app in FUNCTIONS] + [(java, spark) for java in JAVA]
            for file, folder in copies:
                target = Path(self.build_lib, "dolmen", folder)
                self.mkpath(str(target))
                self.copy_file(str(file), str(target))


setup(cmdclass={"build_py": BuildWithFunctions})
