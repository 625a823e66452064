"""Temporary views that live as long as one statement is analysed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from dolmen.base.arguments import short_repr
from dolmen.errors import InputError
from dolmen.spark.arguments import is_remote
from dolmen.spark.failures import raising_dolmen_errors

Args: TypeAlias = Mapping[str, Any] | Sequence[Any] | None
"""The values of a statement's parameters, as ``spark.sql`` takes them."""

VIEW = "__dolmen_view_"
"""Begins their names."""

_numbers = count()


class Views:
    """Makes views, runs SQL over them, and drops them at the end of the block.

    Args:
        args: the values of parameters in the SQL.
    """

    def __init__(self, spark: SparkSession, args: Args) -> None:
        self.spark, self.args = spark, args
        self._names: list[str] = []

    def __enter__(self) -> Views:
        return self

    def __exit__(self, *_: object) -> None:
        if is_remote(self.spark):  # there, a frame is analysed when it is used: its views stay as long as the session
            return
        for name in self._names:
            self.spark.catalog.dropTempView(name)

    def make(self, frame: DataFrame) -> str:
        """Makes a view of a frame, and returns its name."""
        name = f"{VIEW}{next(_numbers)}"
        frame.createOrReplaceTempView(name)
        self._names.append(name)
        return name

    def run(self, sql: str, what: str) -> DataFrame:
        """Analyses a query.

        Args:
            what: the piece of the user's SQL that it was made for.

        Raises:
            InputError: Spark refuses it.
        """
        try:
            with raising_dolmen_errors():
                return self.spark.sql(sql, self.args) if self.args else self.spark.sql(sql)
        except (AnalysisException, ParseException) as error:
            raise refusal(what, error) from error


def refusal(what: str, error: AnalysisException) -> InputError:
    """The error about a piece of SQL that Spark refuses, without values."""
    reason = str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]
    return InputError(f"Spark refuses {short_repr(what)}: {reason}")
