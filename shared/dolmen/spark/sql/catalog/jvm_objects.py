"""Objects of Python that Spark's planner calls in the JVM, and a rule of its optimizer.

py4j makes a Java object of a Python one that names the interfaces it implements (``Java``). Java sends every
call there, also of methods with a default. A rule of the optimizer is an abstract class, which takes a class of Java:
Janino compiles it, with which Spark compiles its own queries. So no jar is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce, wraps
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from dolmen.errors import Error
from dolmen.spark.frame_types import items
from dolmen.spark.tasks import Py4JJavaError, mark_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

F = TypeVar("F", bound=Callable[..., Any])
_RULE = """
package dolmen;

public final class ReadTables extends org.apache.spark.sql.catalyst.rules.Rule {
  final java.util.function.Function read;
  final java.util.function.Function change;

  public ReadTables(java.util.function.Function read, java.util.function.Function change) {
    this.read = read;
    this.change = change;
  }

  public org.apache.spark.sql.catalyst.trees.TreeNode apply(org.apache.spark.sql.catalyst.trees.TreeNode plan) {
    if (plan instanceof org.apache.spark.sql.catalyst.plans.logical.UpdateTable
      || plan instanceof org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable
      || plan instanceof org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable)
      return (org.apache.spark.sql.catalyst.trees.TreeNode) this.change.apply(plan);
    if (plan instanceof org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression
      || plan instanceof org.apache.spark.sql.catalyst.plans.logical.OverwritePartitionsDynamic)
      plan = (org.apache.spark.sql.catalyst.trees.TreeNode) this.change.apply(plan);
    return plan.transformDown(new Replacement(this.read));
  }

  public static final class Replacement extends scala.runtime.AbstractPartialFunction {
    final java.util.function.Function read;

    public Replacement(java.util.function.Function read) { this.read = read; }

    public boolean isDefinedAt(Object node) {
      return isScan(node) || CONDITIONS && node instanceof org.apache.spark.sql.catalyst.plans.logical.Filter
        && isScan(((org.apache.spark.sql.catalyst.plans.logical.Filter) node).child());
    }

    static boolean isScan(Object node) {
      return node instanceof org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation
        && ((org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation) node)
          .scan().description().startsWith("PREFIX");
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!this.isDefinedAt(node)) return otherwise.apply(node);
      org.apache.spark.sql.catalyst.plans.logical.LogicalPlan rows =
        (org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) this.read.apply(node);
      if (isScan(node)) return withColumns(rows, (org.apache.spark.sql.catalyst.plans.logical.LogicalPlan) node);
      org.apache.spark.sql.catalyst.plans.logical.Filter filter =
        (org.apache.spark.sql.catalyst.plans.logical.Filter) node;
      return new org.apache.spark.sql.catalyst.plans.logical.Filter(
        filter.condition(), withColumns(rows, filter.child()));
    }

    // The rows with the columns of the scan. A plan must not lose that some are never NULL, as it does in the reader.
    static org.apache.spark.sql.catalyst.plans.logical.LogicalPlan withColumns(
        org.apache.spark.sql.catalyst.plans.logical.LogicalPlan rows,
        org.apache.spark.sql.catalyst.plans.logical.LogicalPlan scan) {
      java.util.ArrayList columns = new java.util.ArrayList();
      scala.collection.Iterator inner = rows.output().iterator(), outer = scan.output().iterator();
      while (outer.hasNext()) {
        org.apache.spark.sql.catalyst.expressions.Attribute to =
          (org.apache.spark.sql.catalyst.expressions.Attribute) outer.next();
        org.apache.spark.sql.catalyst.expressions.Expression value =
          (org.apache.spark.sql.catalyst.expressions.Expression) inner.next();
        if (!to.nullable()) value = new org.apache.spark.sql.catalyst.expressions.KnownNotNull(value);
        columns.add(new org.apache.spark.sql.catalyst.expressions.Alias(
          value, to.name(), to.exprId(), to.qualifier(), scala.Option.apply(to.metadata()),
          org.apache.spark.api.python.PythonUtils.toSeq(new java.util.ArrayList())));
      }
      return new org.apache.spark.sql.catalyst.plans.logical.Project(
        org.apache.spark.api.python.PythonUtils.toSeq(columns), rows);
    }
  }
}
"""
has_driver = True
"""False in the process of ``catalog_jar``: no Python program there turns errors of Java back into dolmen's."""
_numbers = count(1)
_objects: WeakValueDictionary[int, JavaObjectMethods] = WeakValueDictionary()
"""By their hash codes. The JVM keeps its objects alive."""


def interfaces(*names: str) -> Any:
    """The class by which py4j knows which interfaces of Java a class of Python implements."""
    return type("Java", (), {"implements": list(names)})


class JavaObjectMethods:
    """The methods that Java calls on every object."""

    def __init__(self, name: str) -> None:
        self._name, self._hash = name, next(_numbers)
        _objects[self._hash] = self

    def toString(self) -> str:  # noqa: N802 - Java's name, as of all methods here
        return self._name

    def hashCode(self) -> int:  # noqa: N802
        return self._hash

    def equals(self, other: Any) -> bool:
        return other is not None and bool(other.hashCode() == self._hash and other.toString() == self.toString())


def python_object(java: Any) -> Any:
    """The object of Python that the JVM knows as ``java``; None if it is an object of Java."""
    found = _objects.get(java.hashCode())
    return found if found is not None and found.equals(java) else None


def gateway_of(spark: SparkSession) -> Any:
    """py4j's gateway, which serves the calls of the JVM."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    parameters = getattr(gateway, "python_parameters", None) or gateway.get_callback_server().callback_server_parameters
    parameters.propagate_java_exceptions = True  # else Spark sees a traceback in place of an exception's sentence
    return gateway


def array(spark: SparkSession, kind: str, values: Iterable[Any] = ()) -> JavaObject:
    """A Java array of the objects of a class."""
    found = list(values)
    made = gateway_of(spark).new_array(java_class(spark, kind), len(found))
    for index, value in enumerate(found):
        made[index] = value
    return made


def java_class(spark: SparkSession, name: str) -> Any:
    """A class of the JVM by its full name. py4j asks for each part of it, so it is kept."""
    return value_of_session(spark, name, lambda: reduce(getattr, name.split("."), spark._jvm))


def value_of_session(spark: SparkSession, name: str, make: Callable[[], Any]) -> Any:
    """An object of the JVM that never changes, which is made once."""
    objects = vars(spark.sparkContext._gateway).setdefault("_dolmen_objects", {})
    if name not in objects:
        objects[name] = make()
    return objects[name]


def seq(spark: SparkSession, values: Sequence[Any]) -> JavaObject:
    """A sequence of Scala's."""
    return spark._jvm.PythonUtils.toSeq(list(values))


def v2_columns(spark: SparkSession, struct: Any) -> JavaObject:
    """The columns of a StructType of the JVM's as those of a catalog's table."""
    util = java_class(spark, "org.apache.spark.sql.connector.catalog.CatalogV2Util")
    # Spark 4.3 asks whether defaults in the metadata count.
    return util.structTypeToV2Columns(struct, *((True,) if spark.version >= "4.3" else ()))


def throwing(spark: SparkSession, error: Exception) -> Py4JJavaError:
    """The error as an exception of Java that Spark shows with this sentence."""
    note = f"\n{mark_of(error)}" if isinstance(error, Error) and has_driver else ""
    exception = spark._jvm.java.lang.IllegalArgumentException(f"{error}{note}")
    return Py4JJavaError(str(error), exception)


def called_by_spark(method: F) -> F:
    """A method of an object with a ``spark``, whose errors of dolmen and of Spark become exceptions of Java."""

    @wraps(method)
    def call(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Error as error:
            raise throwing(self.spark, error) from error
        except CapturedException as error:
            if error._origin is None:
                raise
            raise Py4JJavaError(str(error), error._origin) from error

    return call  # type: ignore[return-value]


class _Function(JavaObjectMethods):
    """A function of Java."""

    Java = interfaces("java.util.function.Function")

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__("dolmen")
        self._function = function

    def apply(self, value: Any) -> Any:
        return self._function(value)


class ScalaFunction(_Function):
    Java = interfaces("scala.Function1")

    def __init__(self, spark: SparkSession, function: Callable[[Any], Any]) -> None:
        super().__init__(function)
        self.spark = spark

    apply = called_by_spark(_Function.apply)


def add_table_function(spark: SparkSession, name: str, make: Callable[[Any], Any]) -> None:
    """Adds a table function to a session: ``make`` gets the expressions of its arguments, and returns a plan."""
    gateway_of(spark)
    registry = spark._jsparkSession.sessionState().tableFunctionRegistry()
    registry.createOrReplaceTempFunction(name, ScalaFunction(spark, make), "scala_udf")


def add_rule(spark: SparkSession, prefix: str, read: Callable[[Any], Any], change: Callable[[Any], Any]) -> None:
    """Makes a session's optimizer put ``read(scan)``, a plan with the same columns, in the place of each scan whose
    description begins with ``prefix``, and
    ``change(plan)`` in the place of each plan that deletes, updates, merges or overwrites rows.

    On Spark 4.0, which asks no scan of ours for conditions, ``read`` also gets a filter above a scan.
    """
    gateway_of(spark)
    jvm = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    conditions = "true" if spark.version < "4.1" else "false"
    compiler.cook(_RULE.replace("PREFIX", prefix).replace("CONDITIONS", conditions))
    made = compiler.getClassLoader().loadClass("dolmen.ReadTables").getConstructors()[0]
    arguments = jvm.java.util.ArrayList()  # an array of py4j takes no object of Python
    arguments.add(_Function(read))
    arguments.add(_Function(change))
    rule = made.newInstance(arguments.toArray())
    experimental = spark._jsparkSession.experimental()
    rules = [*items(experimental.extraOptimizations()), rule]
    getattr(experimental, "extraOptimizations_$eq")(seq(spark, rules))
