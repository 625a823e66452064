"""What `sam build` made, as a process finds it on Lambda: a function, the layers, and nothing else of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from support.built import ROOT, layer_paths, runtime_python
from support.ministack import AWS_ENVIRONMENT
from support.runtime_client import runtime_client

MEMORY_MB = 1024


def packaged_python() -> list[str]:
    """The functions' interpreter without its site-packages: what a layer lacks is not found elsewhere."""
    return [runtime_python(), "-s", "-S"]


def function_folder(function: str) -> Path:
    """What Lambda unpacks to /var/task: there is nothing to build in a function."""
    return ROOT / "functions" / function


def function_environment(function: str, settings: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The whole environment of a function's process: what Lambda and the template set, then ``settings``.

    Args:
        scratch: stands for /tmp, which a function on Lambda has for itself.
    """
    path = [function_folder(function), *layer_paths(), runtime_client()]
    return {
        "PATH": os.environ["PATH"],
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        "TMPDIR": str(scratch),
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LAMBDA_TASK_ROOT": str(function_folder(function)),
        "AWS_LAMBDA_FUNCTION_NAME": function,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(MEMORY_MB),
        "POWERTOOLS_SERVICE_NAME": function,
        "POWERTOOLS_METRICS_NAMESPACE": "dolmen",
        "DOLMEN_CACHE_DIR": str(scratch),
        "DOLMEN_CACHE_BYTES": "268435456",
        **AWS_ENVIRONMENT,
        **settings,
    }
