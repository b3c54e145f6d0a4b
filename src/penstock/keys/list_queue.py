"""The keys of a queue of redis-message-queue, for the importer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListQueueKeys:
    """The keys of a queue of redis-message-queue, which keeps its messages in lists; the importer reads them."""

    name: str
    separator: str = "::"

    def _of(self, kind: str) -> str:
        return f"{self.name}{self.separator}{kind}"

    @property
    def pending(self) -> str:
        """List: what waits, the oldest at the right end."""
        return self._of("pending")

    @property
    def processing(self) -> str:
        """List: what is in flight."""
        return self._of("processing")

    @property
    def leases(self) -> tuple[str, ...]:
        """Sorted set of deadlines; hashes of tokens, delivery counts, and of claims by token, by claim, of tokens."""
        kinds = (
            "lease_deadlines", "lease_tokens", "delivery_counts",
            "claim_result_refs", "claim_result_ids", "claim_result_backrefs",
        )  # fmt: skip
        return tuple(f"{self.processing}:{kind}" for kind in kinds)

    def claim(self, claim_id: str) -> str:
        """String: what a claim was answered."""
        return f"{self.processing}:claim_result:{claim_id}"

    def log(self, kind: str) -> str:
        """List: `dlq`, `completed` or `failed`, the oldest at the right end."""
        return self._of(kind)

    def deduplication(self, key: str) -> str:
        """String: a message was published under the key."""
        return self._of(f"deduplication{self.separator}{key}")

    @staticmethod
    def aside(key: str) -> str:
        """List: what was in a list whose key is that of a stream by now."""
        return f"{key}:import"
