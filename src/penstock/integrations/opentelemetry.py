"""OpenTelemetry: metrics and spans from the events of all parts, spans of handlers, and trace context in headers.

Names follow the semantic conventions for messaging, which have no name of their own for Redis Streams.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from penstock import __version__
from penstock.errors import ConfigurationError, Skip, Snooze, name_of, text_of
from penstock.events import Event, EventName
from penstock.model import StreamMessage
from penstock.task import Task
from penstock.type_checks import is_async

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:  # pragma: no cover
    raise ConfigurationError("telemetry needs opentelemetry-api: pip install 'penstock[otel]'") from error

_SYSTEM = "redis"
_MAX_OPEN = 10_000  # spans of messages being processed; beyond that, the oldest are ended
_ENDS = {
    EventName.COMPLETED, EventName.RETRIED, EventName.DISCARDED, EventName.DEAD_LETTERED, EventName.STALE,
    EventName.HANDED_BACK,
}  # fmt: skip
_NO_FAILURES = (Skip, Snooze)  # by which a handler says what is to become of a message
_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)

Handler = TypeVar("Handler", bound=Callable[..., Any])


class Telemetry:
    """Metrics and spans of one process; give its methods to consumers, queues, workers and balancers.

        telemetry = Telemetry()
        consumer = StreamConsumer(
            client, "orders", config, message_handler=telemetry.traced(ship), on_event=telemetry.on_event
        )

    Providers are those that the process has set for OpenTelemetry, unless others are given. One object serves any
    number of consumers, in both halves of the library and from any thread.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("penstock", __version__, tracer_provider)
        meter = metrics.get_meter("penstock", __version__, meter_provider)
        self._events = meter.create_counter("penstock.events", "{message}", "Messages that an event was about.")
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages that were sent.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were handed to a handler."
        )
        self._durations = meter.create_histogram(
            "messaging.process.duration", "s", "How long handlers ran.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )  # fmt: skip
        self._open: OrderedDict[tuple[str, str], Span] = OrderedDict()
        self._lock = threading.Lock()  # heartbeats send events from other threads

    # --- events -------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Count an event; one that says that a message was claimed begins a span, which ends with that message."""
        attributes = _destination(event.stream, event.group) | {"penstock.event": event.name.value}
        if event.name is EventName.DEAD_LETTERED:
            attributes["penstock.reason"] = str(event.fields.get("reason", ""))
        named = _ids(event.fields)
        count = event.fields.get("count")
        self._events.add(count if isinstance(count, int) else max(1, len(named)), attributes)
        if event.name is EventName.CLAIMED:
            self._begin(event, named)
        for message_id in named:
            self._follow(event, message_id)

    def _begin(self, event: Event, named: Sequence[str]) -> None:
        for message_id in named:
            span = self._tracer.start_span(
                f"process {event.stream}",
                kind=SpanKind.CONSUMER,
                attributes=_process(event.stream, event.group) | {"messaging.message.id": message_id},
            )
            with self._lock:
                self._open[event.stream, message_id] = span
                oldest = self._open.popitem(last=False)[1] if len(self._open) > _MAX_OPEN else None
            if oldest is not None:
                oldest.end()

    def _follow(self, event: Event, message_id: str) -> None:
        is_over, place = _is_end(event), (event.stream, message_id)
        with self._lock:
            span = self._open.pop(place, None) if is_over else self._open.get(place)
        if span is None or event.name is EventName.CLAIMED:
            return
        if event.name is EventName.FAILED:
            span.set_status(Status(StatusCode.ERROR, str(event.fields.get("error", ""))))
        else:
            span.add_event(event.name.value)
        if is_over:
            span.end()

    # --- producers ----------------------------------------------------------------------------------

    @contextmanager
    def sending(self, destination: str, headers: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
        """Trace what the body sends; yield the headers to send along, by which handlers find their way back.

        with telemetry.sending("orders") as headers: await producer.push(order, headers=headers)
        """
        attributes = _destination(destination) | {
            "messaging.operation.name": "send", "messaging.operation.type": "send",
        }  # fmt: skip
        with self._tracer.start_as_current_span(f"send {destination}", kind=SpanKind.PRODUCER, attributes=attributes):
            carrier = dict(headers or {})
            propagate.inject(carrier)
            yield carrier
            self._sent.add(1, _destination(destination))

    # --- handlers -----------------------------------------------------------------------------------

    def traced(self, handler: Handler) -> Handler:
        """Return a handler of messages, batches or tasks that runs in a span, linked to where these were sent."""
        if is_async(handler):

            @wraps(handler)
            async def run(given: Any, *rest: Any) -> Any:
                with self._processing(given):
                    return await handler(given, *rest)

        else:

            @wraps(handler)
            def run(given: Any, *rest: Any) -> Any:
                with self._processing(given):
                    return handler(given, *rest)

        return run  # type: ignore[return-value]

    @contextmanager
    def _processing(self, given: Any) -> Iterator[None]:
        messages = given if isinstance(given, list) else [given]
        destination, attributes = _described(messages)
        span_attributes = _process(destination) | attributes
        if isinstance(given, list):
            span_attributes["messaging.batch.message_count"] = len(messages)
        links = [link for message in messages if (link := _link(message)) is not None]
        began_s, outcome = time.monotonic(), _process(destination)
        with self._tracer.start_as_current_span(
            f"process {destination}", kind=SpanKind.CONSUMER, attributes=span_attributes, links=links,
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield
            except _NO_FAILURES as decision:
                span.add_event(name_of(decision))
                raise
            except BaseException as failure:
                outcome["error.type"] = name_of(failure)
                span.set_attribute("error.type", outcome["error.type"])
                _record(span, failure)
                span.set_status(Status(StatusCode.ERROR, text_of(failure)))
                raise
            finally:
                self._consumed.add(len(messages), _destination(destination))
                self._durations.record(time.monotonic() - began_s, outcome)


def _record(span: Span, failure: BaseException) -> None:
    try:
        span.record_exception(failure)
    except BaseException:  # formatting calls code of the user's, whose error must not replace that of the handler
        span.add_event("exception", {"exception.type": name_of(failure), "exception.message": text_of(failure)})


def _destination(stream: str, group: str = "") -> dict[str, Any]:
    found = {"messaging.system": _SYSTEM, "messaging.destination.name": stream}
    return found | {"messaging.consumer.group.name": group} if group else found


def _process(stream: str, group: str = "") -> dict[str, Any]:
    return _destination(stream, group) | {
        "messaging.operation.name": "process", "messaging.operation.type": "process",
    }  # fmt: skip


def _described(messages: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Return where messages come from, and what is said about one of them."""
    first = messages[0] if messages else None
    if isinstance(first, Task):
        return first.kind, {"messaging.message.id": first.id, "penstock.attempts": first.attempts}
    if isinstance(first, StreamMessage):
        one = {"messaging.message.id": first.message_id or first.id, "penstock.attempts": first.attempts}
        return first.stream, one if len(messages) == 1 else {}
    return "", {}


def _link(message: Any) -> Link | None:
    headers = getattr(message, "headers", None)
    if not headers:
        return None
    context = trace.get_current_span(propagate.extract(headers)).get_span_context()
    return Link(context) if context.is_valid else None


def _is_end(event: Event) -> bool:
    if event.name is EventName.LEASE_LOST:
        return "reason" not in event.fields  # a queue gives a reason, and later reports how the handler ended
    return event.name in _ENDS


def _ids(fields: Mapping[str, object]) -> list[str]:
    if isinstance(one := fields.get("id"), str):
        return [one]
    return [str(each) for each in many] if isinstance(many := fields.get("ids"), list | tuple) else []
