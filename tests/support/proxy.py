"""An HTTP proxy in a process of its own, between a client and an S3 server, that counts requests and injects faults.

    proxy = Proxy.start("http://127.0.0.1:4566")
    proxy.rule("lose", method="PUT", key="_latest_manifest")   # the next such answer is lost after it was applied
    ...
    for request in proxy.requests(): print(request.method, request.key, request.status)

It forwards bytes as they are (Host and signature with them), keeps connections alive on both sides, and streams
bodies. Every request on the wire is recorded, a client's own retries included.
"""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What a rule can do to a request.
FAULTS = {
    "lose": "apply it, then close the connection without an answer",
    "409": "answer 409 ConditionalRequestConflict, not applied",
    "503": "answer 503 SlowDown, not applied",
    "503-after": "apply it, then answer 503",
    "412-after": "apply it, then answer 412",
    "timeout": "hold the connection without an answer until the client leaves, not applied",
    "timeout-after": "apply it, then hold the connection until the client leaves",
    "reset": "reset the connection, not applied",
    "late": "close the connection, and apply it ``seconds`` later",
    "delay": "wait ``seconds``, then go on as usual",
    "duplicate": "apply it twice, give the second answer",
    "cut": "apply it, then break off in the middle of the answer's body",
    "answer": "answer ``status`` (default 200) with ``body`` and ``headers``, not applied",
    "ignore if-match": "apply it without that condition, as a server does that does not know it",
    "ignore if-none-match": "the same with the other one",
    "ignore range": "apply it without its range, as a server does that knows none",
    "forbid": "answer 403 with the code in ``code`` (default AccessDenied), not applied",
}


@dataclass
class Request:
    """One request as it was on the wire; sizes are those of bodies, in bytes."""

    method: str
    key: str  # path without the bucket, decoded
    query: str
    range: str | None
    condition: str | None  # If-Match or If-None-Match, "name: value"
    bytes_up: int = 0
    bytes_down: int = 0
    status: int | None = None  # None: no answer was given
    fault: str | None = None
    held: bool = False  # the connection is being held (after it was applied, for "timeout-after")

    @property
    def size(self) -> int:
        """Size of a range in bytes; 0 without a range."""
        if not self.range:
            return 0
        first, last = self.range.removeprefix("bytes=").split("-")
        return int(last) - int(first) + 1


@dataclass
class Rule:
    """A rule that injects a fault into some requests."""

    faults: list[str]
    method: str | None = None
    key: str = ""
    query: str | None = None
    nth: int = 1
    times: int | None = 1
    probability: float = 1.0
    seed: int = 0
    seconds: float = 0.5
    code: str = "AccessDenied"
    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    server: str = ""
    matched: int = 0
    fired: int = 0
    dice: random.Random = field(default_factory=random.Random, repr=False)

    def __post_init__(self) -> None:
        if unknown := set(self.faults) - set(FAULTS):
            raise ValueError(f"no faults {sorted(unknown)}; there are {sorted(FAULTS)}")
        self.dice.seed(self.seed)

    def draw(self, request: Request) -> str | None:
        """The fault for this request, or None."""
        if self.method not in (None, request.method) or self.key not in request.key:
            return None
        if self.query is not None and self.query not in request.query:
            return None
        self.matched += 1
        if self.matched < self.nth or (self.times is not None and self.fired >= self.times):
            return None
        if self.dice.random() >= self.probability:
            return None
        self.fired += 1
        return self.dice.choice(self.faults)


class Proxy:
    """A test's handle on the process."""

    def __init__(self, process: subprocess.Popen[str], port: int, admin_port: int) -> None:
        self.process, self.url, self._admin_port = process, f"http://127.0.0.1:{port}", admin_port

    @classmethod
    def start(cls, upstream: str) -> Proxy:
        """Starts a proxy in front of ``upstream`` (``http://host:port``); call ``stop`` in the end."""
        process = subprocess.Popen(
            [sys.executable, "-m", "support.proxy_process", upstream],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        if len(ports) != 2:
            process.kill()
            raise RuntimeError(f"the proxy ended with {process.wait()}")
        return cls(process, int(ports[0]), int(ports[1]))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def requests(self) -> list[Request]:
        """All requests since the last reset, in the order in which they arrived."""
        return [Request(**request) for request in self._ask("requests")]

    def reset(self) -> None:
        """Forgets all requests and rules, and releases held connections."""
        self._ask("reset")

    def forget_requests(self) -> None:
        """Forgets all requests; rules stay."""
        self._ask("forget")

    def land(self) -> None:
        """Sends the waiting "late" requests, and returns when they are done."""
        self._ask("land")

    def rule(
        self,
        *faults: str,
        method: str | None = None,
        key: str = "",
        query: str | None = None,
        nth: int = 1,
        times: int | None = 1,
        probability: float = 1.0,
        seed: int = 0,
        seconds: float = 0.5,
        code: str = "AccessDenied",
        status: int = 200,
        body: str = "",
        headers: dict[str, str] | None = None,
        server: str = "",
    ) -> None:
        """Adds a rule; the first rule that fires decides.

        Args:
            faults: names from FAULTS; of several, each time one is drawn by ``seed``.
            method: the HTTP method, None for all.
            key: a part of the key, below the bucket.
            query: a part of the query string (``uploadId=``, ``delete``), None for any.
            nth: fires from the nth matching request on.
            times: fires so often at most, None without end.
            probability: of firing at a match, by ``seed``.
            seconds: for "late" and "delay"; a "late" request with ``math.inf`` waits for ``land``.
            code: for "forbid".
            status, body, headers: for "answer".
            server: for "forbid": what the answer says it comes from.
        """
        description = {name: value for name, value in locals().items() if name != "self"}
        description["headers"] = headers or {}
        Rule(**{**description, "faults": list(faults)})  # a spelling mistake shows here
        self._ask("rule", description)

    def _ask(self, what: str, body: object = None) -> Any:
        wire = http.client.HTTPConnection("127.0.0.1", self._admin_port, timeout=30)
        try:
            wire.request("POST", f"/{what}", json.dumps(body))
            answer = wire.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, text
            return json.loads(text)
        finally:
            wire.close()
