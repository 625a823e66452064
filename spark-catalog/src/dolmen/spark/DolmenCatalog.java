package dolmen.spark;

import java.util.Arrays;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A database as a catalog of Spark: {@code spark.sql.catalog.lake=dolmen.spark.DolmenCatalog}, and its URL as
 * {@code spark.sql.catalog.lake.url}. Each session has one, which asks the {@code Catalog} of a Python process.
 */
public final class DolmenCatalog implements StagingTableCatalog, ProcedureCatalog, SupportsNamespaces {
  private StagingTableCatalog tables;
  private ProcedureCatalog procedures;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    String url = options.get("url");
    if (url == null) {
      throw new IllegalArgumentException("catalog " + name + ": say where its database is: set spark.sql.catalog."
        + name + ".url to s3://bucket/prefix or to a directory");
    }
    if (PythonProcess.isBesideDriver()) {
      throw new IllegalStateException("catalog " + name + ": this driver is a Python program, which needs no jar: call"
        + " dolmen.spark.attach(spark, dolmen.open(\"" + url + "\"), catalog=\"" + name + "\") before");
    }
    SparkSession session = SparkSession.active();
    Object catalog = PythonProcess.of(session.sparkContext()).open(session, name, url);
    tables = (StagingTableCatalog) catalog;
    procedures = (ProcedureCatalog) catalog;
  }

  @Override
  public String name() {
    return tables.name();
  }

  @Override
  public Set<TableCatalogCapability> capabilities() {
    return tables.capabilities();
  }

  @Override
  public String[] defaultNamespace() {
    return tables.defaultNamespace();
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    String[] schema = {name()}; // dbt looks for the tables of the schema that it names, which is the catalog
    return Arrays.stream(tables.listTables(namespace)).map(each -> Identifier.of(schema, each.name()))
      .toArray(Identifier[]::new);
  }

  @Override
  public Table loadTable(Identifier table) throws NoSuchTableException {
    return tables.loadTable(table);
  }

  @Override
  public Table loadTable(Identifier table, Set<TableWritePrivilege> rights) throws NoSuchTableException {
    return tables.loadTable(table, rights);
  }

  @Override
  public Table loadTable(Identifier table, String version) throws NoSuchTableException {
    return tables.loadTable(table, version);
  }

  @Override
  public Table loadTable(Identifier table, long micros) throws NoSuchTableException {
    return tables.loadTable(table, micros);
  }

  @Override
  public boolean tableExists(Identifier table) {
    return tables.tableExists(table);
  }

  @Override
  public Table createTable(Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return tables.createTable(table, columns, partitions, properties);
  }

  @Override
  public StagedTable stageCreate(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return tables.stageCreate(table, columns, partitions, properties);
  }

  @Override
  public StagedTable stageReplace(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties)
      throws NoSuchNamespaceException, NoSuchTableException {
    return tables.stageReplace(table, columns, partitions, properties);
  }

  @Override
  public StagedTable stageCreateOrReplace(
      Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties)
      throws NoSuchNamespaceException {
    return tables.stageCreateOrReplace(table, columns, partitions, properties);
  }

  @Override
  public Table alterTable(Identifier table, TableChange... changes) throws NoSuchTableException {
    return tables.alterTable(table, changes);
  }

  @Override
  public boolean dropTable(Identifier table) {
    return tables.dropTable(table);
  }

  @Override
  public boolean purgeTable(Identifier table) {
    return tables.purgeTable(table);
  }

  @Override
  public void renameTable(Identifier table, Identifier to) throws NoSuchTableException, TableAlreadyExistsException {
    tables.renameTable(table, to);
  }

  @Override
  public UnboundProcedure loadProcedure(Identifier procedure) {
    return procedures.loadProcedure(procedure);
  }

  /** Spark's interface has it from 4.1 on, and nothing calls it before. */
  public Identifier[] listProcedures(String[] namespace) {
    try {
      return (Identifier[]) ProcedureCatalog.class.getMethod("listProcedures", String[].class)
        .invoke(procedures, (Object) namespace);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(name() + ": its procedures can't be listed", error);
    }
  }

  // A database has no schemas; dbt begins with CREATE SCHEMA IF NOT EXISTS lake, where lake is the catalog.

  @Override
  public String[][] listNamespaces() {
    return new String[0][];
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    loadNamespaceMetadata(namespace);
    return new String[0][];
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length > 0) {
      throw new NoSuchNamespaceException(namespace);
    }
    return Map.of();
  }

  /** Spark 4.3 writes the name of a namespace that exists into its log, and fails if it is empty. */
  @Override
  public boolean namespaceExists(String[] namespace) {
    return false;
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> properties) {
    if (namespace.length == 0) {
      return;
    }
    throw new UnsupportedOperationException(
      name() + "." + String.join(".", namespace) + ": a database has tables and no schemas: " + name() + ".table");
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw new UnsupportedOperationException(name() + " is a database, which has no properties of Spark's");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    throw new UnsupportedOperationException(name() + " is a database: drop its tables, one by one");
  }

  // Python finds its catalog by these two, as if Spark knew that one itself.

  @Override
  public int hashCode() {
    return tables.hashCode();
  }

  @Override
  public String toString() {
    return tables.toString();
  }

  @Override
  public boolean equals(Object other) {
    return this == other;
  }
}
