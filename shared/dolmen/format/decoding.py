"""Prepares msgspec's decoders ahead of time."""

from __future__ import annotations

from typing import Any

import msgspec


def prepare(*types: Any) -> None:
    """Builds msgspec's decoders of these types while their module is imported, when only one thread runs.

    Otherwise msgspec makes it when a type is first read, and a thread that reads the same type meanwhile finds it half
    made: the process dies of a segmentation fault (msgspec 0.22, ``json_decode_struct_map_inner``).
    """
    for each in types:
        msgspec.json.Decoder(each)
