"""The core: publishes, reads, holds, renews, settles, retries, dead-letters and recovers messages."""
