"""Calls the scheduled functions for the pipeline: ``python -m dolmen.service.local FUNCTIONS LOG SECONDS``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dolmen.base.runtime import shared_runtime
from dolmen.service.local.local_functions import serve

if __name__ == "__main__":
    try:
        serve(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), shared_runtime())
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)  # the pipeline has ended, and nobody listens
