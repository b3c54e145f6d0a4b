"""The format `penstock_results`: what a result back-end or the results of a task queue hold, as a table."""
