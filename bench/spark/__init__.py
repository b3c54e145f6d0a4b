"""The Spark source and sink against what the same work costs without them: `python -m bench.spark`."""
