"""The source: from ids and counters to ranges, tasks and Arrow batches.

Only *_reader.py and data_source.py need Spark.
"""
