"""Where the results of tasks are kept: on the file system, in PostgreSQL, in an object store.

The first valid result of a task id stays; later ones are rejected. The names here are async; `penstock.sync.results`
has the same names for plain functions and threads.
"""

from penstock.results.backend import ResultBackend, results_table
from penstock.results.fs import FSBackend
from penstock.results.postgres import PostgresBackend
from penstock.results.s3 import S3Backend
from penstock.task import Result, Status

__all__ = ["FSBackend", "PostgresBackend", "Result", "ResultBackend", "S3Backend", "Status", "results_table"]
