"""The build as a process finds it on Lambda: a function and the layers, without other local packages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from support.built import ROOT, layer_paths, runtime_python
from support.ministack import AWS_ENVIRONMENT
from support.runtime_client import runtime_client

MEMORY_MB = 1024


def packaged_python() -> list[str]:
    """The functions' interpreter without site-packages, so that packages come only from the layers."""
    return [runtime_python(), "-s", "-S"]


def function_folder(function: str) -> Path:
    """The folder that Lambda unpacks to /var/task; a function needs no build."""
    return ROOT / "functions" / function


def function_environment(function: str, settings: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The whole environment of a function's process: Lambda's variables, the template's, then ``settings``.

    Args:
        scratch: folder that replaces /tmp.
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
