"""Planes of bytes: a matrix stored column by column, in which a column of equal bytes takes one byte.

Sorted numbers have equal or slowly growing leading bytes, so that most planes vanish here or in compression.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.uint8]

_EQUAL, _DIFFERENT = 0, 1


def encode(matrix: Matrix) -> bytes:
    """One byte for each column: 0 or 1; then each column: its only byte if that was 0, else a byte of each row."""
    if len(matrix) == 0:
        return bytes(matrix.shape[1])
    varies = (matrix != matrix[0]).any(axis=0)
    ends = np.where(varies, len(matrix), 1).tolist()
    columns: list[bytes] = [matrix[:end, at].tobytes() for at, end in enumerate(ends)]
    return bytes(varies) + b"".join(columns)


def decode(body: memoryview, rows: int, columns: int) -> tuple[Matrix, memoryview]:
    """The matrix, and what follows it in ``body``.

    Raises:
        ValueError: the body is too short, or a column is neither 0 nor 1.
    """
    matrix = np.empty((columns, rows), np.uint8)
    marks = bytes(body[:columns])
    if len(marks) != columns or not set(marks) <= {_EQUAL, _DIFFERENT}:
        raise ValueError("no planes")
    at = columns
    for column, mark in enumerate(marks):
        length = rows if mark == _DIFFERENT else min(1, rows)
        plane = np.frombuffer(body[at : at + length], np.uint8)
        if len(plane) != length:
            raise ValueError("a plane is too short")
        matrix[column] = plane[:1] if mark == _EQUAL and rows else plane
        at += length
    return np.ascontiguousarray(matrix.T), body[at:]


def of_numbers(numbers: npt.NDArray[np.uint64], width: int) -> Matrix:
    """The last ``width`` bytes of numbers, the most significant one first."""
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]


def to_numbers(matrix: Matrix) -> npt.NDArray[np.uint64]:
    """The numbers of which ``of_numbers`` made the matrix."""
    padded = np.zeros((len(matrix), 8), np.uint8)
    padded[:, 8 - matrix.shape[1] :] = matrix
    return padded.view(">u8").reshape(-1).astype(np.uint64)
