"""Every scheme of stores can be opened, and is told in the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from dolmen.errors import InputError
from dolmen.store import OPENERS, open_store, portable_url
from dolmen.store.base import SCHEMES, Scheme, scheme_of

ROOT = Path(__file__).resolve().parents[2]


def test_every_scheme_has_an_opener() -> None:
    assert set(OPENERS) == set(SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=str)
def test_messages_name_the_form_of_every_scheme(scheme: Scheme) -> None:
    assert scheme_of(scheme.form) is scheme
    with pytest.raises(InputError, match="plain path") as raised:
        open_store("ftp://host/place")
    assert scheme.form in str(raised.value)


@pytest.mark.parametrize("scheme", [one for one in SCHEMES.values() if not one.is_shared], ids=str)
def test_a_store_of_one_process_has_no_url_for_others(scheme: Scheme) -> None:
    with pytest.raises(InputError, match="process"):
        portable_url(open_store(scheme.form))


def test_docs_tell_every_scheme() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert [scheme.form for scheme in SCHEMES.values() if f"`{scheme.form}`" not in text] == []
