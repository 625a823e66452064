"""Puts functions/ into the wheel, as data of dolmen.service.local: `dolmen local` runs the code of AWS Lambda."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FUNCTIONS = sorted(Path("functions").glob("*/app.py"))


class BuildWithFunctions(build_py):
    """Builds the package, and copies the functions beside the code that runs them."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout has them where they are
            for app in FUNCTIONS:
                target = Path(self.build_lib, "dolmen", "service", "local", "handlers", app.parent.name)
                self.mkpath(str(target))
                self.copy_file(str(app), str(target))


setup(cmdclass={"build_py": BuildWithFunctions})
