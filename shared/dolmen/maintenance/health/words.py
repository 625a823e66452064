"""Numbers, sizes and times as people say them."""

from __future__ import annotations

from dolmen.base.units import LAST_US, duration_text, utc

_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")


def size_text(size_bytes: int) -> str:
    """A size with three digits, in units of 1,024 as settings have them: ``12.3 MB``."""
    if size_bytes < 1_000:
        return f"{size_bytes:,} bytes"
    size, unit = float(size_bytes), 0
    while size >= 1_000 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    digits = f"{size:,.{2 if size < 10 else 1 if size < 100 else 0}f}"
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {_UNITS[unit]}"


def power_text(exponent: int) -> str:
    """2**exponent bytes: ``64 KB``."""
    unit = min(exponent // 10, len(_UNITS) - 1)
    return f"{2 ** (exponent - 10 * unit):,} {_UNITS[unit]}"


def range_text(first: int, end: int) -> str:
    """From 2**first to 2**end bytes: ``16 – 32 KB``."""
    least, greatest = power_text(first), power_text(end)
    return f"{least.partition(' ')[0] if least.partition(' ')[2] == greatest.partition(' ')[2] else least} – {greatest}"


def count_text(count: int, one: str, more: str = "") -> str:
    """A number of things: ``1 file``, ``2 files``."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def time_text(at_us: int) -> str:
    """A time to the minute, in UTC; "" for 0."""
    if not at_us:
        return ""
    return f"{utc(at_us):%Y-%m-%d %H:%M} UTC" if 0 < at_us <= LAST_US else "beyond the year 9999"


def ago_text(at_us: int, now_us: int) -> str:
    """How long before now a time was, or how long after now it will be: ``3h ago``, ``in 2d``."""
    if at_us > now_us:
        return f"in {duration_text(at_us - now_us)}"
    return f"{duration_text(now_us - at_us)} ago"


def share_text(part: float, whole: float) -> str:
    """A share in percent: ``12 %``; "<1 %" for what is not nothing."""
    share = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < share < 1 else f"{share:.0f} %"
