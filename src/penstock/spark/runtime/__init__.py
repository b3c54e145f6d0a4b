"""What the Spark half runs on: sessions, Java, connections to Redis, retries, and code on its way to executors."""
