"""Creating an immutable object for certain."""

from __future__ import annotations

from dolmen.base.runtime import Runtime
from dolmen.errors import CorruptionError, ObjectNotFoundError, StoreUnavailableError
from dolmen.store.backoff import attempts
from dolmen.store.base import Buffer, ObjectStore, PreconditionFailed, Stored, Unknown


def create(store: ObjectStore, key: str, body: Buffer, runtime: Runtime) -> None:
    """Creates an object under a name that no other writer uses (a fresh uuid), whatever becomes of the answers.

    For such a name an unknown outcome is harmless: the same bytes may be sent again, a refusal means that an earlier
    attempt landed after all (it is read back to be sure), and giving up leaves an orphan at worst.

    Raises:
        StoreUnavailableError: no attempt is known to have landed.
        CorruptionError: another object stands under this key.
    """
    reason = ""
    for _ in attempts(runtime):
        match store.put(key, body):
            case Stored():
                return
            case Unknown(reason):
                continue
            case PreconditionFailed():
                try:
                    found = store.get(key).body
                except ObjectNotFoundError:
                    reason = "it is refused as existing, and then cannot be found"
                    continue
                if found == body:
                    return
                raise CorruptionError(key, "another object stands under this name, which should be this writer's own")
    raise StoreUnavailableError(f"cannot create {key!r} in {store.url}: {reason}")
