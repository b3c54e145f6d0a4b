"""Benchmarks of Penstock as ratios inside one run on one machine; start with `python -m bench`."""
