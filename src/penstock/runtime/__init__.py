"""Waiting, locking and running things side by side: the same names for asyncio (aio) and for threads (threads)."""
