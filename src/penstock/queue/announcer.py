"""Tells users what happens to the messages of queues."""

from __future__ import annotations

import logging

from penstock.events import Event, EventName, EventSink
from penstock.queue.queue_consumer import GROUP

logger = logging.getLogger("penstock.queue")


class Announcer:
    """Whoever wants to know what happens: one for all queues of a gateway, others for one queue each."""

    def __init__(self, on_event: EventSink | None) -> None:
        self._on_event = on_event
        self._listeners: dict[str, list[EventSink]] = {}

    def listen(self, queue: str, sink: EventSink) -> None:
        """Tell a sink, too, what happens to the messages of a queue."""
        listeners = self._listeners.setdefault(queue, [])
        if sink != self._on_event and sink not in listeners:
            listeners.append(sink)

    def tell(self, queue: str, name: EventName, **fields: object) -> None:
        """Tell of an event of a queue, or of all of them where its name is empty."""
        if self._on_event is None and not self._listeners:
            return  # nobody listens, which is to cost nothing
        event = Event(name, queue, GROUP, fields)
        if self._on_event is not None:
            tell(self._on_event, event)
        # What happens to the connection, and to no queue in particular, concerns all of them.
        for name_of_queue in [queue] if queue else list(self._listeners):
            for sink in self._listeners.get(name_of_queue, ()):
                tell(sink, Event(name, name_of_queue, GROUP, fields))


def tell(sink: EventSink, event: Event) -> None:
    """Tell a user's function what happened; its failure changes nothing."""
    try:
        sink(event)
    except Exception:
        logger.exception("on_event failed for %s", event.name)
