"""Waiting, locking and concurrency, with the same names for asyncio (aio) and threads (threads)."""
