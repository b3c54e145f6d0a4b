"""Lets Spark find the format `penstock_results` without a call to `penstock.spark.register`.

PySpark registers one `DefaultSource` of each top-level module whose name begins with `pyspark_`.
"""

import contextlib

# An error here would stop Spark from finding any data source at all. Without the extra there is just nothing to find.
with contextlib.suppress(ImportError):
    from penstock.spark.results.source import ResultsSource as DefaultSource

__all__ = ["DefaultSource"]
