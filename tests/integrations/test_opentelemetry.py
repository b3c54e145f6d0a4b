"""OpenTelemetry gets metrics from the events of all parts, and spans of what handlers do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock import ConsumerConfig, StreamMessage
from penstock.cli.worker_metrics import ConsumerCollector
from penstock.errors import FatalError, Snooze
from penstock.events import Event, EventName
from penstock.integrations.opentelemetry import Telemetry
from penstock.sync import RedisMessageQueue, StreamBalancer, StreamClient, StreamConsumer, StreamProducer
from penstock.sync.tasks import Handlers, RedisTaskQueue, Task, Worker
from tests.helpers.ageing import Ageing
from tests.helpers.failing_modules import TOLD, Mute

pytestmark = pytest.mark.usefixtures("default_server")


class Collected:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        spans = TracerProvider()
        spans.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = Telemetry(
            tracer_provider=spans, meter_provider=MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        )

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def points(self, metric: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        found = (
            each for resource in data.resource_metrics for scope in resource.scope_metrics for each in scope.metrics
        )
        return [point for each in found if each.name == metric for point in each.data.data_points]

    def events(self) -> Counter[tuple[str, str]]:
        counted: Counter[tuple[str, str]] = Counter()
        for point in self.points("penstock.events"):
            attributes = point.attributes
            counted[attributes["messaging.destination.name"], attributes["penstock.event"]] += point.value
        return counted


@pytest.fixture
def collected() -> Collected:
    return Collected()


@pytest.fixture
def client(redis_url: str) -> Iterator[StreamClient]:
    with StreamClient.from_url(redis_url) as client:
        yield client


def test_a_span_of_a_handler_is_linked_to_the_one_that_sent_the_message(
    client: StreamClient, collected: Collected
) -> None:
    telemetry = collected.telemetry

    def ship(message: StreamMessage) -> None:
        if message.data["order"]:
            raise FatalError("no address")

    producer = StreamProducer(client, "orders", on_event=telemetry.on_event)
    for order in (0, 1):
        with telemetry.sending("orders", {"tenant": "a"}) as headers:
            producer.push({"order": order}, headers=headers)
    config = ConsumerConfig(group="shipping", block_ms=10, concurrency=1)
    consumer = StreamConsumer(
        client, "orders", config, message_handler=telemetry.traced(ship), on_event=telemetry.on_event
    )
    consumer.run_once()
    sent, handled = collected.spans("send orders"), collected.spans("process orders")
    assert [span.kind for span in (*sent, *handled)] == [SpanKind.PRODUCER] * 2 + [SpanKind.CONSUMER] * 2
    assert [span.links[0].context.span_id for span in handled] == [span.context.span_id for span in sent]
    assert [span.status.status_code for span in handled] == [StatusCode.UNSET, StatusCode.ERROR]
    assert handled[1].attributes is not None
    assert handled[1].attributes["error.type"] == "FatalError"
    assert collected.events()["orders", "dead_lettered"] == 1
    took = {point.attributes.get("error.type"): point.count for point in collected.points("messaging.process.duration")}
    assert took == {None: 1, "FatalError": 1}
    [consumed] = collected.points("messaging.client.consumed.messages")
    assert (consumed.value, consumed.attributes["messaging.destination.name"]) == (2, "orders")
    assert sum(point.value for point in collected.points("messaging.client.sent.messages")) == 2


def test_a_batch_is_one_span_with_all_links(client: StreamClient, collected: Collected) -> None:
    telemetry = collected.telemetry
    producer = StreamProducer(client, "orders")
    for order in range(3):
        with telemetry.sending("orders") as headers:
            producer.push(order, headers=headers)
    config = ConsumerConfig(group="shipping", block_ms=10)
    handler = telemetry.traced(lambda messages: [message.id for message in messages])
    StreamConsumer(client, "orders", config, handler).run_once()
    [span] = collected.spans("process orders")
    assert len(span.links) == 3
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 3


def test_a_message_of_a_queue_is_a_span_from_its_claim_to_its_end(client: StreamClient, collected: Collected) -> None:
    queue = RedisMessageQueue("emails", client=client, on_event=collected.telemetry.on_event, max_delivery_count=1)
    for n in range(2):
        queue.publish({"n": n})
    with queue.process_message():
        assert collected.spans("process emails") == []
    with pytest.raises(ValueError, match="bounced"), queue.process_message():
        raise ValueError("bounced")
    done, failed = collected.spans("process emails")
    assert (done.status.status_code, failed.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert [event.name for event in done.events] == ["completed"]
    assert [event.name for event in failed.events] == ["dead_lettered"]
    events = collected.events()
    assert (events["emails", "published"], events["emails", "claimed"], events["emails", "dead_lettered"]) == (2, 2, 1)


def test_a_message_of_a_queue_that_lost_its_lease_is_a_span_until_its_handler_has_ended(collected: Collected) -> None:
    def report(name: EventName, **fields: object) -> None:
        collected.telemetry.on_event(Event(name, "emails", "queue", fields))

    report(EventName.CLAIMED, id="1-0")
    report(EventName.LEASE_LOST, ids=["1-0"], reason="lost the lease to another consumer")
    assert collected.spans("process emails") == []
    report(EventName.FAILED, id="1-0", error="bounced")
    report(EventName.STALE, id="1-0", what="retried")
    [span] = collected.spans("process emails")
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["lease_lost", "stale"]


def test_tasks_have_spans_by_kind_and_a_snooze_is_no_failure(client: StreamClient, collected: Collected) -> None:
    telemetry, handlers = collected.telemetry, Handlers()

    @handlers.task("render")
    @telemetry.traced
    def render(task: Task) -> dict[str, int]:
        if task.payload.get("later"):
            raise Snooze(3600)
        return {"pages": 3}

    with RedisTaskQueue(client, "jobs", on_event=telemetry.on_event) as queue:
        queue.enqueue_many([Task(kind="render", id="now"), Task(kind="render", id="later", payload={"later": True})])
        worker = Worker(queue, handlers, concurrency=1, handle_signals=False, burst=True, on_event=telemetry.on_event)
        worker.run()
    spans = {
        span.attributes["messaging.message.id"]: span for span in collected.spans("process render") if span.attributes
    }
    assert spans.keys() == {"now", "later"}
    assert all(span.status.status_code is StatusCode.UNSET for span in spans.values())
    assert [event.name for event in spans["later"].events] == ["Snooze"]
    assert (collected.events()["jobs", "completed"], collected.events()["jobs", "retried"]) == (1, 1)


def test_a_balanced_stream_is_a_span_while_it_is_owned(
    client: StreamClient, collected: Collected, raw: redis.Redis
) -> None:
    raw.xadd("device-1", {"data": "{}"})
    balancer = StreamBalancer(client, "telemetry", id="reader", on_event=collected.telemetry.on_event)
    with balancer as notices:
        balancer.add_stream("device-1")
        next(iter(notices))
        [stream] = {stream for stream, event in collected.events() if event == "claimed"}
        assert collected.spans(f"process {stream}") == []
        balancer.done_stream("device-1")
        assert [event.name for event in collected.spans(f"process {stream}")[0].events] == ["completed"]


@pytest.mark.parametrize("name", EventName)
def test_every_event_is_counted_whatever_it_carries(name: EventName, collected: Collected) -> None:
    for fields in ({}, {"count": 3}, {"id": "1-0"}, {"ids": ["1-0", "2-0"]}, {"id": None, "error": 7}):
        collected.telemetry.on_event(Event(name, "orders", "shipping", fields))
    assert collected.events()["orders", name.value] == 1 + 3 + 1 + 2 + 1


async def test_an_async_handler_stays_one(collected: Collected) -> None:
    async def ship(message: StreamMessage) -> str:
        return message.id

    traced = collected.telemetry.traced(ship)
    assert await traced(StreamMessage("1-0", {}, stream="orders")) == "1-0"
    assert len(collected.spans("process orders")) == 1


def test_an_error_that_cannot_be_shown_does_not_replace_that_of_the_handler(collected: Collected) -> None:
    def ship(message: StreamMessage) -> None:
        raise Mute

    with pytest.raises(Mute):
        collected.telemetry.traced(ship)(StreamMessage("1-0", {}, stream="orders"))
    [span] = collected.spans("process orders")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, TOLD)
    [event] = span.events
    assert dict(event.attributes or {}) == {"exception.type": "Mute", "exception.message": TOLD}


def test_counters_prometheus_logs_and_telemetry_tell_the_same_story(
    client: StreamClient, collected: Collected, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def ship(message: StreamMessage) -> None:
        if message.data["order"] == 1:
            raise FatalError("no address")
        if message.data["order"] == 2:
            raise ValueError("no paper")

    StreamProducer(client, "orders").push_many([{"order": n} for n in range(4)])
    raw.xgroup_create("orders", "shipping", "0")
    raw.xreadgroup("shipping", "dead-worker", {"orders": ">"}, count=2)
    Ageing(raw, "orders", "shipping").age()
    config = ConsumerConfig(group="shipping", block_ms=10, retry_initial_delay_ms=60_000)
    consumer = StreamConsumer(client, "orders", config, message_handler=ship, on_event=collected.telemetry.on_event)
    consumer.run_once()
    metrics = consumer.metrics()
    events = collected.events()
    counted = {
        "reclaimed": metrics.total_reclaimed,
        "retried": metrics.total_retried,
        "dead_lettered": metrics.total_dlq,
    }
    assert counted == {"reclaimed": 2, "retried": 1, "dead_lettered": 1}
    assert {name: events["orders", name] for name in counted} == counted
    [family] = ConsumerCollector("orders", "shipping", consumer.metrics).collect()
    served = {sample.labels["event"]: sample.value for sample in family.samples}
    assert (served["reclaimed"], served["retried"], served["dead"], served["acked"]) == (2, 1, 1, metrics.total_acked)
    logged = [record for record in caplog.records if getattr(record, "group", "") == "shipping"]
    assert sorted(getattr(record, "attempt", 0) for record in logged if record.exc_info) == [1, 2]
