"""A message queue with publish() and process_message(), on the same streams, scripts and recovery as the consumers."""
