"""Anything in any order: after every step the messages are where a simple model says that they must be."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import FatalError
from penstock.redis.scripts import script
from penstock.sync import RedisGateway, RedisMessageQueue, StreamClient
from penstock.testing import FaultProxy

QUEUE, GROUP = "orders", "queue"
COMPLETED, FAILED, DEAD = "orders::completed", "orders::failed", "orders::dlq"
BASE = f"{{{QUEUE}}}"
LEASE_S, LIMIT, MAX_REDRIVES = 600.0, 3, 3
WHO = st.integers(0, 1)


def lost(*commands: str) -> st.SearchStrategy[str]:
    """Chooses the reply that gets lost in a step; most often none does."""
    return st.sampled_from(["", *commands])


class Message:
    """What the model knows of one message."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, "pending"
        self.number = self.attempts = self.redrives = 0
        self.is_expired = False

    def __repr__(self) -> str:
        return f"<{self.text} {self.place} {self.number}:{self.attempts}>"


class Holder:
    """A consumer with a message in hand, who may be stale by now."""

    def __init__(self, gateway: RedisGateway, processing: Any, message: Message) -> None:
        self.gateway, self.processing, self.message = gateway, processing, message
        self.number = int(processing.lease_token.partition(":")[0])
        self.consumer = processing.lease_token.rpartition(":")[2]


class QueueMachine(RuleBasedStateMachine):
    """Two processes at one queue on a real server, behind a proxy that loses replies, against the model."""

    raw: ClassVar[redis.Redis]
    proxy: ClassVar[FaultProxy]
    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.raw.flushall()
        self.client = StreamClient.from_url(self.proxy.url)
        self.gateways = [self._gateway() for _ in range(2)]
        self.queues = [self._queue(gateway) for gateway in self.gateways]
        self.texts = itertools.count()
        self.messages: dict[str, Message] = {}
        self.markers: dict[str, Message] = {}
        self.dead: list[Message] = []
        self.live: dict[str, Holder] = {}
        self.failures = 0

    def _gateway(self) -> RedisGateway:
        return RedisGateway(
            redis_client=self.client,
            retry_budget_seconds=30,
            retry_max_delay_seconds=0.05,
            message_wait_interval_seconds=0,
            message_visibility_timeout_seconds=LEASE_S,
            max_delivery_count=LIMIT,
            dead_letter_queue=DEAD,
        )

    @staticmethod
    def _queue(gateway: RedisGateway) -> RedisMessageQueue:
        logs = {"enable_completed_queue": True, "max_completed_length": None}
        logs |= {"enable_failed_queue": True, "max_failed_length": None}
        delays = {"retry_delay_seconds": 0.001, "max_retry_delay_seconds": 0.001}
        return RedisMessageQueue(
            QUEUE, gateway=gateway, get_deduplication_key=lambda text: str(text)[0], **logs, **delays
        )

    def teardown(self) -> None:
        """Brings everything to its end: nothing is stuck."""
        self._lose("")
        for _ in range(10 * len(self.messages) + 10):
            if not any(message.place in ("pending", "processing", "retrying") for message in self.messages.values()):
                break
            self.expire()
            holder = self._claim(0)
            if holder is not None:
                self.complete(holder, "")
            self.all_is_where_it_should_be()
        else:
            raise AssertionError(f"stuck: {self.messages}")
        for gateway in self.gateways:
            gateway.close()
        self.client.close()

    def _lose(self, loss: str) -> None:
        self.proxy.heal()
        if loss.isupper():
            self.proxy.drop_reply(loss)
        elif loss:
            self.proxy.drop_reply("EVALSHA", containing=script(loss).sha.encode())

    # --- steps --------------------------------------------------------------------------------------

    @rule(key=st.sampled_from("abcdef"), who=WHO, loss=lost("streams/publish"))
    def publish(self, key: str, who: int, loss: str) -> None:
        self._lose(loss)
        message = Message(f"{key}{next(self.texts)}")
        is_new = self.queues[who].publish(message.text)
        assert is_new is (key not in self.markers)
        if is_new:
            self.messages[message.text] = self.markers[key] = message

    @rule(who=WHO, loss=lost("streams/publish"))
    def publish_without_a_key(self, who: int, loss: str) -> None:
        self._lose(loss)
        message = Message(f"!{next(self.texts)}")
        self.gateways[who].add_message(QUEUE, message.text)
        self.messages[message.text] = message

    @rule(
        target=holders,
        who=WHO,
        loss=lost(
            "streams/restore",
            "XREADGROUP",
            "streams/take_due",
            "streams/recover",
            "streams/begin",
            "streams/dead_letter",
        ),
    )
    def claim(self, who: int, loss: str) -> Any:
        self._lose(loss)
        holder = self._claim(who)
        return multiple() if holder is None else holder

    def _claim(self, who: int) -> Holder | None:
        for consumer in self.gateways[who]._consumers.values():
            consumer._next_due_s = consumer._next_recovery_s = 0.0
            consumer._cursor = "-"
        processing = self.queues[who].process_message()
        text = processing.__enter__()
        self._note_dead_lettered()
        if text is None:
            return None
        message = self.messages[text]
        assert message.place != "processing" or message.is_expired, "handed out though its lease is good"
        assert message.place in ("pending", "processing", "retrying"), f"handed out, but {message.place}"
        holder = self.live[text] = Holder(self.gateways[who], processing, message)
        assert holder.number > message.number, "tokens must rise"
        assert processing.attempts == message.attempts + 1 <= LIMIT
        message.number, message.attempts = holder.number, processing.attempts
        message.place, message.is_expired = "processing", False
        return holder

    def _note_dead_lettered(self) -> None:
        # Claims dead-letter what they find that has no chances left.
        known = {message.text for message in self.dead}
        for _, fields in self.raw.xrange(DEAD):
            message = self.messages[fields[b"data"].decode()]
            if message.text not in known:
                assert message.place == "processing"
                assert message.is_expired
                assert message.attempts == LIMIT
                self.live.pop(message.text, None)
                self._dead_letter(message)

    def _dead_letter(self, message: Message) -> None:
        message.place = "dead"
        self.dead.append(message)
        self._free(message)

    def _free(self, message: Message) -> None:
        if self.markers.get(message.text[0]) is message:
            del self.markers[message.text[0]]

    def _end(self, holder: Holder, error: BaseException | None, loss: str) -> bool:
        self._lose(loss)
        is_live = self.live.get(holder.message.text) is holder
        holder.processing.__exit__(type(error) if error else None, error, None)
        is_gone = holder.message.place not in ("processing", "retrying")
        if not (loss and is_gone):
            # Else a stale holder whose reply got lost cannot know that it was another one who settled the message.
            assert holder.processing.lease_lost is not is_live, "the live holder may settle, and nobody else"
        if is_live:
            del self.live[holder.message.text]
        return is_live

    @rule(holder=consumes(holders), loss=lost("queue/finish"))
    def complete(self, holder: Holder, loss: str) -> None:
        if self._end(holder, None, loss):
            holder.message.place = "completed"

    @rule(
        holder=consumes(holders), loss=lost("streams/park", "streams/dead_letter", "queue/once"), is_fatal=st.booleans()
    )
    def fail(self, holder: Holder, loss: str, is_fatal: bool) -> None:
        self.failures += 1
        if self._end(holder, FatalError("failed") if is_fatal else ValueError("failed"), loss):
            if is_fatal or holder.message.attempts >= LIMIT:
                self._dead_letter(holder.message)
            else:
                holder.message.place = "retrying"

    @rule(holder=consumes(holders), loss=lost("streams/park"))
    def hand_back(self, holder: Holder, loss: str) -> None:
        if self._end(holder, KeyboardInterrupt(), loss):
            holder.message.place = "retrying"
            holder.message.attempts -= 1

    @rule(holder=holders, loss=lost("streams/renew"))
    def renew(self, holder: Holder, loss: str) -> None:
        self._lose(loss)
        is_live = self.live.get(holder.message.text) is holder
        token = holder.processing.lease_token
        assert holder.gateway.renew_message_lease(QUEUE, holder.message.text, token) is is_live
        if is_live:
            holder.message.is_expired = False

    @rule(holder=consumes(holders))
    def kill(self, holder: Holder) -> None:
        """Nobody will settle it: its process is gone, or forgot it."""

    @rule()
    def expire(self) -> None:
        for row in self._pending():
            idle_ms = int(2_000 * LEASE_S)
            self.raw.xclaim(QUEUE, GROUP, row["consumer"], 0, [row["message_id"]], idle=idle_ms, justid=True)
        for message in self.messages.values():
            message.is_expired = True

    @rule(most=st.integers(1, 3), who=WHO, loss=lost("streams/redrive"))
    def redrive(self, most: int, who: int, loss: str) -> None:
        self._lose(loss)
        chosen = [message for message in self.dead if message.redrives < MAX_REDRIVES][:most]
        assert self.queues[who].redrive_dead_letters(most) == len(chosen)
        for message in chosen:
            self.dead.remove(message)
            message.place, message.number, message.attempts = "pending", 0, 0
            message.redrives += 1

    @rule(place=st.sampled_from(["pending", "dead", "completed"]), who=WHO, loss=lost("queue/drop", "queue/once"))
    def purge(self, place: str, who: int, loss: str) -> None:
        self._lose(loss)
        gone = [message for message in self.messages.values() if message.place == place]
        assert self.queues[who].purge(target="dead_letter" if place == "dead" else place) == len(gone)
        for message in gone:
            message.place = "dropped"
            if place == "pending":
                self._free(message)
        self.dead = [message for message in self.dead if message.place == "dead"]

    @rule(who=WHO, loss=lost("streams/take"))
    def end_in_good_order(self, who: int, loss: str) -> None:
        self._lose(loss)
        assert self.gateways[who].hand_back()

    # --- the truth ----------------------------------------------------------------------------------

    def _pending(self) -> list[dict[str, Any]]:
        groups = self.raw.xinfo_groups(QUEUE) if self.raw.exists(QUEUE) else []
        return list(self.raw.xpending_range(QUEUE, GROUP, "-", "+", 1_000)) if groups else []

    def _texts(self, key: str) -> list[str]:
        return [fields[b"data"].decode() for _, fields in self.raw.xrange(key)]

    @invariant()
    def all_is_where_it_should_be(self) -> None:
        entries = {entry_id: fields[b"data"].decode() for entry_id, fields in self.raw.xrange(QUEUE)}
        waiting = set(self.raw.zrange(f"{BASE}:retries:{GROUP}", 0, -1))
        rows = {row["message_id"]: row for row in self._pending()}
        places: Counter[tuple[str, str]] = Counter()
        for entry_id, text in entries.items():
            if entry_id not in rows:
                places[text, "pending"] += 1
            else:
                places[text, "retrying" if entry_id in waiting else "processing"] += 1
        for key, place in ((COMPLETED, "completed"), (DEAD, "dead")):
            places.update((text, place) for text in self._texts(key))
        expected = {(text, message.place) for text, message in self.messages.items() if message.place != "dropped"}
        assert dict(places) == dict.fromkeys(expected, 1), "every message is in one place"
        self._check_counts(entries, rows)
        assert waiting <= rows.keys(), "due times of nothing"
        assert self.raw.xlen(FAILED) == self.failures
        self._check_markers({text: entry_id for entry_id, text in entries.items()})

    def _check_counts(self, entries: dict[bytes, str], rows: dict[bytes, dict[str, Any]]) -> None:
        attempts = self.raw.hgetall(f"{BASE}:attempts:{GROUP}")
        for entry_id, row in rows.items():
            message = self.messages[entries[entry_id]]
            assert row["times_delivered"] == message.number
            assert int(attempts.pop(entry_id, row["times_delivered"])) == message.attempts
            holder = self.live.get(message.text)
            if message.place == "processing" and holder is not None:
                assert row["consumer"].decode() == holder.consumer, "the lease is the holder's"
        assert attempts == {}, "attempts of nothing"

    def _check_markers(self, ids: dict[str, bytes]) -> None:
        keys = list(self.raw.scan_iter(f"{BASE}:dedup:*", count=1_000))
        found = {key.decode().rpartition(":")[2]: self.raw.get(key) for key in keys}
        assert found.keys() == self.markers.keys()
        for key, message in self.markers.items():
            if message.text in ids:
                assert found[key] == ids[message.text]

    @invariant()
    def the_numbers_agree(self) -> None:
        stats = self.queues[0].stats()
        places = Counter(message.place for message in self.messages.values())
        found = (stats.pending, stats.processing, stats.retrying, stats.completed, stats.dead_letter)
        assert found == tuple(places[place] for place in ("pending", "processing", "retrying", "completed", "dead"))


@pytest.mark.usefixtures("default_server")
def test_whatever_happens_messages_are_conserved(raw: redis.Redis, fault_proxy: FaultProxy) -> None:
    machine = type("Machine", (QueueMachine,), {"raw": raw, "proxy": fault_proxy})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
