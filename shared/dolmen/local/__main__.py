"""The process that calls the scheduled functions: ``python -m dolmen.local FUNCTIONS LOG SECONDS``, by the pipeline."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dolmen.local.schedule import serve
from dolmen.runtime import shared_runtime

if __name__ == "__main__":
    try:
        serve(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), shared_runtime())
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)  # the pipeline has ended, and nobody listens
