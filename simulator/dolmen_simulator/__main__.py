"""``python -m dolmen_simulator --seed N --steps M`` is ``dolmen simulate --seed N --steps M``."""

from __future__ import annotations

import sys

from dolmen.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["simulate"]
    main()
