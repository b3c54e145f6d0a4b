"""From ids and counters to ranges and Arrow batches, without Spark."""
