"""Sends GETs of objects: the first of each bucket through botocore's client, the others after its pattern."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from botocore.exceptions import ClientError
from botocore.hooks import first_non_none_response
from botocore.httpchecksum import handle_checksum_body
from botocore.parsers import create_parser
from botocore.response import StreamingBody

from dolmen.base.runtime import Instant, Runtime
from dolmen.base.units import SECOND_US
from dolmen.store.s3.pattern import RequestPattern

_OPERATION = "GetObject"
_CONDITIONS = {"Range": "Range", "IfMatch": "If-Match"}
_KNOWN = {"Bucket", "Key", *_CONDITIONS}

#: Answers that say something of the object or of the server's load. All others, redirections, a signature that is not
#: accepted or rights that are missing, are about the pattern, too: the client then asks again.
_FINAL = {404, 412, 416, 429}


class ObjectReader:
    """Asks for objects. Answers and errors are those of the client's ``get_object``, as far as stores look at them.

    The client's own session sends the requests (its connections, proxies, certificates, time-outs), the session's
    credentials sign them, and handlers of ``before-send`` see them.

    Args:
        client: botocore's, of S3.
        credentials: gives the session's, refreshed when that is due.
        runtime: its clock is the time for signatures.
        observe: gets the header ``Date`` of each answer that the client has not seen, and when the request was sent.
    """

    def __init__(
        self,
        client: Any,
        credentials: Callable[[], Any],
        runtime: Runtime,
        observe: Callable[[str, Instant], None],
    ) -> None:
        self._client, self._credentials, self._runtime, self._observe = client, credentials, runtime, observe
        self._patterns: dict[str, tuple[RequestPattern, dict[str, Any]]] = {}
        self._seen = threading.local()
        self._http: Any = getattr(getattr(client, "_endpoint", None), "http_session", None)
        client.meta.events.register(f"before-call.s3.{_OPERATION}", self._see_context)
        client.meta.events.register(f"before-send.s3.{_OPERATION}", self._see_request)

    def get_object(self, **request: Any) -> dict[str, Any]:
        """Asks for an object, once. The answer's body is a stream.

        Raises:
            ClientError, BotoCoreError: as the client does.
        """
        bucket = request["Bucket"]
        plain = request.keys() <= _KNOWN and request.get("IfMatch", "").isascii()
        if plain and (known := self._patterns.get(bucket)):
            answer = self._ask(request, *known)
            if answer is not None:
                return answer
            self._patterns.pop(bucket, None)
        self._seen.request = self._seen.context = None
        asked: dict[str, Any] = self._client.get_object(**request)
        if plain and self._http is not None and self._seen.request is not None:
            credentials = self._credentials()
            pattern = credentials and RequestPattern.of(self._seen.request, request["Key"], credentials)
            if pattern:
                self._patterns[bucket] = pattern, {"checksum": (self._seen.context or {}).get("checksum", {})}
        return asked

    def _ask(self, request: dict[str, Any], pattern: RequestPattern, context: dict[str, Any]) -> dict[str, Any] | None:
        """Asks after a pattern; None if the answer says that the pattern may be wrong."""
        conditions = {header: request[name] for name, header in _CONDITIONS.items() if name in request}
        sent = self._runtime.instant()
        moment = _moment(sent.clock_us // SECOND_US)
        prepared = pattern.request(request["Key"], conditions, self._credentials(), moment)
        told = self._client.meta.events.emit(f"before-send.s3.{_OPERATION}", request=prepared)
        http = first_non_none_response(told) or self._http.send(prepared)
        if date := http.headers.get("date"):
            self._observe(date, sent)
        operation = self._client.meta.service_model.operation_model(_OPERATION)
        answer: dict[str, Any] = {
            "headers": http.headers,
            "status_code": http.status_code,
            "context": {"operation_name": _OPERATION},
            "body": StreamingBody(http.raw, http.headers.get("content-length")),
        }
        if http.status_code in (200, 206):
            if any(name.lower().startswith("x-amz-checksum-") for name in http.headers):
                handle_checksum_body(http, answer, context, operation)
            found = {"Body": answer["body"], "ETag": http.headers["etag"]}
            if "content-range" in http.headers:
                found["ContentRange"] = http.headers["content-range"]
            return found
        answer["body"] = answer["body"].read()
        if http.status_code not in _FINAL and http.status_code < 500:
            return None
        parser = create_parser(operation.service_model.resolved_protocol)
        raise ClientError(parser.parse(answer, operation.output_shape), _OPERATION)

    def _see_context(self, context: dict[str, Any], **_event: Any) -> None:
        self._seen.context = context

    def _see_request(self, request: Any, **_event: Any) -> None:
        self._seen.request = request


@lru_cache(maxsize=4)
def _moment(seconds: int) -> str:
    """A time since the epoch as signatures have it."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
