"""An HTTP proxy in front of a server that answers 500, or nothing at all, on demand."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self

from penstock.redis.embedded import LOOPBACK

Mood = Literal["pass", "500", "hang", "lose reply"]


class HttpProxy:
    """Forwards requests; `mood` says how it treats them from now on. `seen` are the methods and paths."""

    def __init__(self, target_port: int) -> None:
        self.mood: Mood = "pass"
        self.seen: list[tuple[str, str]] = []
        self._is_over = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                proxy.seen.append((self.command, self.path))
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if proxy.mood == "hang":
                    proxy._is_over.wait()
                    self.close_connection = True
                    return
                if proxy.mood == "500":
                    self._say(500, [], b"<Error><Code>InternalError</Code></Error>")
                    return
                link = http.client.HTTPConnection(LOOPBACK, target_port, timeout=60)
                link.request(self.command, self.path, body, dict(self.headers))
                answer = link.getresponse()
                content = answer.read()
                link.close()
                if proxy.mood == "lose reply":
                    self.close_connection = True
                    return
                self._say(answer.status, answer.getheaders(), content)

            def _say(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="http-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)
