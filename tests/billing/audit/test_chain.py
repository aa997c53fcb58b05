"""A chain is followed only if every event is what, and where, it was recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audit import chain as chain_module
from app.audit.chain import START, Head, Link, Verifier, audit_keys, head_seal, link_mac

KEYS = audit_keys("pepper-of-the-tests")
KEY = KEYS[0]
T0 = datetime(2026, 1, 1, tzinfo=UTC)
MICROSECONDS = str(int(T0.timestamp()) * 1_000_000)


def chain(length: int = 4, key: bytes = KEY) -> tuple[list[Link], Head]:
    links: list[Link] = []
    previous = START
    for seq in range(1, length + 1):
        at = T0 + timedelta(microseconds=seq)
        fields = ("operator", f"req_{seq}", "key.created", f"key_{seq}", None, "{}")
        link = Link("ten_a", seq, f"aud_{seq}", at, *fields, "")
        previous = link_mac(key, previous, link)
        links.append(link._replace(mac=previous))
    return links, Head("ten_a", length, previous, head_seal(key, "ten_a", length, previous))


def findings(links: list[Link], head: Head | None, kept: tuple[int, str] | None = None) -> int:
    verifier = Verifier(KEYS, kept)
    verifier.take(links)
    verifier.finish(head)
    return len(verifier.findings)


def test_what_was_recorded_is_intact() -> None:
    links, head = chain()
    assert findings(links, head) == 0
    assert findings(links, head, kept=(2, links[1].mac)) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"actor": "key_x"},
        {"request_id": "req_x"},
        {"action": "key.deleted"},
        {"target": "key_x"},
        {"before": ""},
        {"before": "null"},
        {"after": None},
        {"after": "{} "},
        {"id": "aud_x"},
        {"recorded_at": T0},
        {"tenant_id": "ten_b"},
        {"mac": "0" * 64},
    ],
)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_event_that_was_edited_is_found(place: int, change: dict[str, Any]) -> None:
    links, head = chain()
    links[place] = links[place]._replace(**change)
    assert findings(links, head) > 0


def test_events_that_are_missing_added_or_elsewhere_are_found() -> None:
    links, head = chain()
    others = (
        links[1:],
        links[:-1],
        [links[0], *links[2:]],
        [links[1], links[0], *links[2:]],
        [*links, links[-1]._replace(seq=5)],
        [],
    )
    assert all(findings(list(changed), head) > 0 for changed in others)


def test_a_chain_that_somebody_without_the_secret_made_anew_is_found() -> None:
    links, head = chain(key=audit_keys("another-pepper-of-theirs")[0])
    assert findings(links, head) > 0


def test_a_head_set_back_needs_its_seal() -> None:
    links, head = chain()
    earlier = Head("ten_a", 2, links[1].mac, head.seal)
    assert findings(links[:2], earlier) > 0
    assert findings(links, None) > 0


def test_what_was_kept_elsewhere_shows_a_database_that_was_set_back_as_a_whole() -> None:
    links, head = chain()
    earlier, earlier_head = chain(2)
    assert findings(earlier, earlier_head) == 0  # which nothing inside it can show
    assert findings(earlier, earlier_head, kept=(head.seq, head.mac)) > 0
    assert findings(links, head, kept=(2, links[2].mac)) > 0


texts = st.text(alphabet="a:1-", max_size=4)


@given(one=st.tuples(texts, texts, texts), other=st.tuples(texts, texts, texts))
def test_two_events_have_one_mac_only_if_they_are_the_same(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    macs = [
        link_mac(KEY, START, Link("ten_a", 1, "aud", T0, *fields, "t", None, None, ""))
        for fields in (one, other)
    ]
    assert (macs[0] == macs[1]) == (one == other)


def test_a_chain_that_goes_on_under_a_new_pepper_is_followed_with_both() -> None:
    old, new = audit_keys("the-pepper-of-before, the-pepper-of-today")
    links, head = chain(4, old)
    begun = Link("ten_a", 5, "aud_5", T0, "operator", "req", "key.created", "key", None, None, "")
    links.append(begun._replace(mac=link_mac(new, links[-1].mac, begun)))
    mac = links[-1].mac
    head = Head("ten_a", 5, mac, head_seal(new, "ten_a", 5, mac))
    for keys, num_findings in (((new, old), 0), ((old, new), 0), ((new,), 4), ((old,), 2)):
        verifier = Verifier(keys)
        verifier.take(links)
        verifier.finish(head)
        assert len(verifier.findings) == num_findings, keys


@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(["", "1:a", "-"])), min_size=8))
def test_a_mac_is_the_same_whether_its_text_is_ascii_or_not(texts: list[str]) -> None:
    link = Link(texts[0], 7, texts[1], T0, *texts[2:6], texts[6], None, "")
    for each in (link, link._replace(before=None, after=texts[7])):
        fields = (each.tenant_id, "7", each.id, MICROSECONDS, *each[4:10])
        try:
            expected = chain_module._mac(KEY, "event", START, *fields)
        except UnicodeEncodeError:
            continue  # a lone surrogate, which Postgres has none of
        assert link_mac(KEY, START, each) == expected
