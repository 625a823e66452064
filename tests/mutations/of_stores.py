"""Mutations of what S3's answers mean."""

# ruff: noqa: E501  # quotes lines of the full length

from __future__ import annotations

from mutations.mutation import Edit, Mutation, mutation

STORES: tuple[Mutation, ...] = (
    mutation(
        "412 counts as success",
        "412 is a failed precondition",
        "store/s3/bucket_store.py",
        "                        return PreconditionFailed()\n",
        '                        return Stored("")\n',
    ),
    mutation(
        "409 counts as 412",
        "409 means that nothing landed and no writer won: the request may be sent again",
        "store/s3/failures.py",
        "    if status in (409, 429) or code in _SEND_AGAIN:",
        "    if status == 409:\n        return PutVerdict.PRECONDITION\n    if status == 429 or code in _SEND_AGAIN:",
    ),
    mutation(
        "409 counts as success",
        "409 means that nothing landed",
        "store/s3/bucket_store.py",
        "                        reason = describe(error)\n",
        '                        return Stored("")\n',
    ),
    mutation(
        "5xx on a conditional PUT counts as nothing landed",
        "time-out, connection loss and 5xx on a conditional PUT are an unknown outcome",
        "store/s3/failures.py",
        "        return PutVerdict.REFUSED\n    return PutVerdict.UNKNOWN\n",
        "        return PutVerdict.REFUSED\n    return PutVerdict.NOTHING_LANDED\n",
    ),
    mutation(
        "a time-out of a conditional PUT counts as nothing landed",
        "time-out, connection loss and 5xx on a conditional PUT are an unknown outcome",
        "store/s3/failures.py",
        "(*_NO_CREDENTIALS, ParamValidationError)) else PutVerdict.UNKNOWN\n",
        "(*_NO_CREDENTIALS, ParamValidationError)) else PutVerdict.NOTHING_LANDED\n",
    ),
    mutation(
        "a PUT without a response counts as done",
        "an unknown outcome is a type of its own",
        "store/s3/bucket_store.py",
        "                        return Unknown(describe(error))\n",
        '                        return Stored("")\n',
    ),
    mutation(
        "the pointer is put without If-Match",
        "the pointer is replaced only by compare-and-swap on its ETag",
        "store/s3/bucket_store.py",
        '            request["IfMatch"] = if_match\n        reason, began',
        '            request.pop("IfMatch", None)\n        reason, began',
    ),
    mutation(
        "a refused pointer PUT is sent again however long that took",
        "a pointer PUT is signed within 4 minutes of the Date it is stamped with, each time it is sent",
        "store/s3/bucket_store.py",
        "            if attempt.number and if_match is not None and self.runtime.monotonic() - began > RESEND_SECONDS:\n",
        "            if attempt.number and if_match is not None and self.runtime.monotonic() < began:\n",
    ),
    Mutation(
        "manifests are named by their version and put over each other",
        "a manifest is created under a name of its own attempt, with If-None-Match",
        (
            Edit("commit/loop.py", "attempt_id = self._runtime.attempt_id()", 'attempt_id = "00000000"'),
            Edit(
                "store/s3/bucket_store.py",
                '            request["IfNoneMatch"] = "*"\n',
                '            request.pop("IfMatch", None)\n',
            ),
        ),
    ),
    mutation(
        "an upload whose completion has no response counts as done",
        "after an unclear completion, the object is requested to find out",
        "store/s3/bucket_store.py",
        "                    is_unclear = True\n",
        "                    return\n",
    ),
    mutation(
        "the last part of an upload is left out",
        "an object is completed with all its parts",
        "store/s3/bucket_store.py",
        "            if self._buffer:\n                self._send(len(self._buffer))\n",
        "            if self._buffer and not self._pending and not self._parts:\n                self._send(len(self._buffer))\n",
    ),
    mutation(
        "an object that could not be created counts as created",
        "a commit names an object only after it is known to exist",
        "store/base.py",
        '    raise StoreUnavailableError(f"cannot create {key!r} in {store.url}: {reason}")\n',
        "",
    ),
    mutation(
        "keys that could not be deleted count as deleted",
        "for a bulk delete, the outcome of each key is checked",
        "store/s3/bucket_store.py",
        "        return [Deleted(key, errors.get(self._root + key)) for key in keys]\n",
        "        return [Deleted(key, errors.get(self._root)) for key in keys]\n",
    ),
)
