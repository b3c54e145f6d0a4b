"""A JDBC connection of the driver of a pipeline, through Spark's JVM and SQL dialects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.spark.pipeline.sink_options import Jdbc
from penstock.spark.pipeline.sinks.staged import ARRAY, BYTES, NUMBER, TEXT, TIME, TRUTH, UNKNOWN, Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ON_DRIVER = -1
# Classes of SQL states: connections, conflicts of transactions, and PostgreSQL's resources and shutdowns; bad data and
# broken constraints.
_PASSING, _ABOUT_VALUES = ("08", "40", "53", "57P"), ("22", "23")
# Of these, what happens again: a broken constraint, and a login that the server refuses, unless it has too many.
_STAYING, _TOO_MANY = ("40002", "08004"), "Too many connections"
_NO_DRIVER = "no JDBC driver"  # whose state is that of a connection


class JdbcFailed(PenstockError):
    """A JDBC database failed or rejected a statement, perhaps because of a value."""

    def __init__(self, text: str, *, is_about_values: bool = False) -> None:
        super().__init__(text)
        self.is_about_values = is_about_values


class JdbcUnavailable(JdbcFailed):
    """A JDBC database is restarting, or was in the middle of something else; a later attempt may succeed."""


class JdbcDatabase:
    """Access to one database. Each failure is a JdbcFailed with the database's message in one line."""

    def __init__(self, sink: Jdbc, spark: SparkSession) -> None:
        self._sink, self._spark = sink, spark
        self._jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no other access

    def quoted(self, column: str) -> str:
        """Return a quoted column name."""
        return str(self._dialect().quoteIdentifier(column))

    def save(self, rows: DataFrame, table: str, mode: str, **more: str) -> None:
        """Let Spark write rows to a table, which it creates if it does not exist."""
        with _in_one_line():
            rows.write.format("jdbc").mode(mode).options(**{**self._given(table), **more}).save()

    @contextmanager
    def connection(self) -> Iterator[JdbcConnection]:
        """Open a connection; without a commit, its transaction is rolled back at the end."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        with _in_one_line():
            made = self._dialect().createConnectionFactory(self._options()).apply(_ON_DRIVER)
            try:
                made.setAutoCommit(False)
                yield JdbcConnection(made, self._dialect())
            finally:
                with suppress(Py4JJavaError):  # the connection is broken, so the database rolls back by itself
                    made.rollback()
                    made.close()

    def _options(self) -> Any:
        made = self._jvm.java.util.HashMap()
        for name, value in self._given(self._sink.table).items():
            made.put(name, value)
        parameters = self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(made)
        return self._jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(parameters)

    def _given(self, table: str) -> dict[str, str]:
        given = {**self._sink.options, "url": self._sink.url, "dbtable": table}
        driver = None if "driver" in given else self._found_driver()
        return given if driver is None else {**given, "driver": driver}

    def _found_driver(self) -> str | None:
        # Java itself searches only the jars that it was started with, not those that a session has added.
        loader = self._jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
        offered = self._jvm.java.util.ServiceLoader.load(self._jvm.java.lang.Class.forName("java.sql.Driver"), loader)
        drivers = offered.iterator()
        while drivers.hasNext():
            driver = drivers.next()
            if driver.acceptsURL(self._sink.url):
                return str(driver.getClass().getName())
        return None

    def _dialect(self) -> Any:
        return self._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._sink.url)


class JdbcConnection:
    """An open transaction."""

    def __init__(self, connection: Any, dialect: Any) -> None:
        self._connection, self._dialect = connection, dialect

    @property
    def has_transactions(self) -> bool:
        """Whether several statements can become visible in one step."""
        return bool(self._connection.getMetaData().supportsTransactions())

    def columns(self, table: str) -> dict[str, Column] | None:
        """Return the columns of a table, or None if there is none."""
        statement = self._connection.createStatement()
        try:
            if not self._exists(table):
                return None
            found = statement.executeQuery(f"SELECT * FROM {table} WHERE 1 = 0").getMetaData()  # noqa: S608 - as declared
            return _described(found, _with_defaults(self._connection.getMetaData(), table))
        finally:
            statement.close()

    def _exists(self, table: str) -> bool:
        from py4j.protocol import Py4JJavaError

        statement = self._connection.createStatement()
        try:
            statement.executeQuery(self._dialect.getTableExistsQuery(table)).close()
        except Py4JJavaError:  # databases have no other common answer
            self._connection.rollback()
            return False
        finally:
            statement.close()
        return True

    def run(self, statement: str) -> int:
        """Run a statement without values; return the number of affected rows."""
        return self.execute(statement)

    def execute(self, sql: str, *values: str | int) -> int:
        """Run a statement; return the number of affected rows."""
        statement = self._prepared(sql, values)
        try:
            return int(statement.executeUpdate())
        finally:
            statement.close()

    def number(self, sql: str, *values: str | int) -> int | None:
        """Return the number in the first row of a query, or None if there is no row."""
        statement = self._prepared(sql, values)
        try:
            found = statement.executeQuery()
            return int(found.getLong(1)) if found.next() else None
        finally:
            statement.close()

    def attempted(self, work: Callable[[], object]) -> JdbcFailed | None:
        """Do some work; if the database rejects a value in it, roll it back and return the error."""
        from py4j.protocol import Py4JJavaError

        before = self._connection.setSavepoint()
        try:
            work()
        except Py4JJavaError as error:
            failed = _failure(error)
            if not failed.is_about_values:
                raise
            self._connection.rollback(before)
            return failed
        return None

    def commit(self) -> None:
        """Make everything visible."""
        self._connection.commit()

    def _prepared(self, sql: str, values: tuple[str | int, ...]) -> Any:
        statement = self._connection.prepareStatement(sql)
        for index, value in enumerate(values, 1):
            if isinstance(value, int):
                statement.setLong(index, value)
            else:
                statement.setString(index, value)
        return statement


@contextmanager
def _in_one_line() -> Iterator[None]:
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        raise _failure(error) from error


def _failure(error: Any) -> JdbcFailed:
    thrown = error.java_exception
    states = [str(each.getSQLState() or "") for each in _chain(thrown) if _is_of_sql(each)]
    reason = _reason(thrown)
    if any(state.startswith(_ABOUT_VALUES) for state in states):  # also if it has ended the transaction
        return JdbcFailed(reason, is_about_values=True)
    is_passing = any(state.startswith(_PASSING) and state not in _STAYING for state in states) or _TOO_MANY in reason
    return JdbcUnavailable(reason) if is_passing and _NO_DRIVER not in reason else JdbcFailed(reason)


def _chain(thrown: Any) -> Iterator[Any]:
    while thrown is not None:
        yield thrown
        if _is_of_sql(thrown) and thrown.getNextException() is not None:
            yield thrown.getNextException()  # the row that failed in a batch of rows
        thrown = thrown.getCause()


def _is_of_sql(thrown: Any) -> bool:
    try:
        return bool(thrown.getClass().getMethod("getSQLState", None))
    except Exception:
        return False


def _reason(thrown: Any) -> str:
    """Return the message of the innermost exception: the outer ones only report that a job failed."""
    while thrown.getCause() is not None and not thrown.getClass().getName().startswith("java.sql."):
        thrown = thrown.getCause()
    text = " ".join(str(thrown.getMessage() or thrown.toString()).split())
    if "No suitable driver" in text or "ClassNotFoundException" in str(thrown.toString()):
        return (
            f"the Spark session has {_NO_DRIVER} for this url ({text}): add its jar, for example with "
            'spark."spark.jars.packages", or set its class in options.driver'
        )
    return text


# --- the columns of a table, with PostgreSQL's categories of types ---

# Numbers of java.sql.Types.
_CATEGORIES = {
    **dict.fromkeys((-6, 5, 4, -5, 6, 7, 8, 2, 3), NUMBER),
    **dict.fromkeys((1, 12, -1, -15, -9, -16, 2005, 2011), TEXT),
    **dict.fromkeys((91, 92, 93, 2013, 2014), TIME),
    **dict.fromkeys((16, -7), TRUTH),
    **dict.fromkeys((-2, -3, -4, 2004), BYTES),
    2003: ARRAY,
}
_NO_NULLS = 0
_LENGTHY = ("CHAR", "VARCHAR", "DECIMAL", "NUMERIC")


def _described(metadata: Any, defaults: set[str] | None) -> dict[str, Column]:
    """Return the columns of a result; `defaults` are those that rows may omit, None if unknown."""
    found = {}
    for number in range(1, metadata.getColumnCount() + 1):
        name = str(metadata.getColumnName(number))
        may_lack = metadata.isNullable(number) != _NO_NULLS or metadata.isAutoIncrement(number)
        category = _CATEGORIES.get(int(metadata.getColumnType(number)), UNKNOWN)
        is_required = defaults is not None and not may_lack and name not in defaults
        found[name] = Column(_type(metadata, number), "", category, is_required)
    return found


def _with_defaults(metadata: Any, table: str) -> set[str] | None:
    """Return the columns that have a default or a generated value; None if the database does not report them."""
    schema, _, name = table.replace('"', "").replace("`", "").rpartition(".")
    for folded in (str, str.upper, str.lower):
        rows = metadata.getColumns(None, folded(schema) if schema else None, folded(name), None)
        found = dict(_columns(rows))
        rows.close()
        if found:
            return {column for column, has_default in found.items() if has_default}
    return None


def _columns(rows: Any) -> Iterator[tuple[str, bool]]:
    while rows.next():
        is_made = "YES" in (rows.getString("IS_AUTOINCREMENT"), rows.getString("IS_GENERATEDCOLUMN"))
        yield str(rows.getString("COLUMN_NAME")), is_made or rows.getString("COLUMN_DEF") is not None


def _type(metadata: Any, number: int) -> str:
    name = str(metadata.getColumnTypeName(number))
    if name.upper() not in _LENGTHY:
        return name
    scale = metadata.getScale(number)
    return f"{name}({metadata.getPrecision(number)}{f',{scale}' if scale else ''})"
