"""Servers that speak S3, on free ports: moto's, which creates only when asked to, and rclone's, which ignores that."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from penstock.redis.embedded import LOOPBACK, free_port

BUCKET = "results"
KEY, SECRET = "ACCESSKEY123", "SECRETKEY12345"
_START_S = 60.0

# One request at a time: with several, moto looks for an object and creates it in two steps.
_MOTO = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""


class S3Server:
    """A server process with one bucket."""

    def __init__(self, folder: Path, program: str = "moto") -> None:
        self.port = free_port()
        self._log = folder / f"{program}.log"
        if program == "moto":
            self._words = [sys.executable, "-c", _MOTO, str(self.port)]
        else:
            (folder / "buckets" / BUCKET).mkdir(parents=True)
            rclone = str(Path(sys.executable).with_name("rclone"))
            options = [
                "--addr",
                f"{LOOPBACK}:{self.port}",
                "--auth-key",
                f"{KEY},{SECRET}",
                "--config",
                str(folder / "none"),
            ]
            self._words = [rclone, "serve", "s3", *options, str(folder / "buckets")]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_until_it_answers()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()  # it has nothing to keep
            self._process.wait()

    def options(self, port: int | None = None) -> dict[str, Any]:
        """Returns how S3Backend reaches the server, or a proxy in front of it."""
        return {
            "endpoint": f"http://{LOOPBACK}:{port or self.port}",
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        }

    def empty(self) -> None:
        """Forgets everything but the bucket; of moto's server only."""
        self._ask("POST", "/moto-api/reset")
        self._ask("PUT", f"/{BUCKET}")

    def _ask(self, method: str, path: str) -> None:
        request = urllib.request.Request(f"http://{LOOPBACK}:{self.port}{path}", method=method)
        urllib.request.urlopen(request, timeout=30).close()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return self._ask("GET", "/")
            except urllib.error.HTTPError as answer:
                return answer.close()  # 403 is an answer as well
            except OSError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the server did not start: {self._log.read_text()[-2000:]}") from None
                time.sleep(0.05)
