"""What the ledger says does not depend on the order in which it was told."""

from __future__ import annotations

from functools import reduce

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.requests.ledger import Entry, entry_of, merge, merge_all
from engine.messages import UsageAuthor, UsageRecord
from tests.builders.usage import make_record

REASONS = ("stop", "length", "abort", "api_lost", "engine_lost", "queue_timeout")
records = st.builds(
    UsageRecord,
    author=st.sampled_from(UsageAuthor),
    request_id=st.just("req_a"),
    tenant_id=st.just("ten_a"),
    epoch=st.integers(0, 3),
    num_prompt_tokens=st.integers(1, 3),
    num_generated_tokens=st.integers(0, 5),
    num_reasoning_tokens=st.integers(0, 2),
    num_cached_tokens=st.integers(0, 2),
    adapter_digest=st.sampled_from((None, "sha256:a", "sha256:b")),
    finish_reason=st.sampled_from(REASONS),
    engine_id=st.sampled_from((None, "one", "two")),
    queue_ms=st.sampled_from((None, 0, 7)),
)
finals = records.map(entry_of)


@given(
    st.lists(finals, min_size=1, max_size=6).flatmap(
        lambda e: st.tuples(st.just(e), st.permutations(e))
    )
)
def test_records_in_any_order_make_one_row(orders: tuple[list[Entry], list[Entry]]) -> None:
    first, second = orders
    assert merge_all(first) == merge_all(second)
    assert len(merge_all(first)) == 1


@given(finals, finals, finals)
def test_merging_is_associative_and_repeating_changes_nothing(a: Entry, b: Entry, c: Entry) -> None:
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(merge(a, b), b) == merge(a, b)


def test_control_the_last_word_would_depend_on_the_order() -> None:
    entries = [entry_of(make_record(generated=n)) for n in (1, 2)]
    assert reduce(lambda _, last: last, entries) != reduce(lambda _, last: last, entries[::-1])


def merged(*told: UsageRecord) -> Entry:
    [entry] = merge_all(map(entry_of, told)).values()
    return entry


def test_the_greatest_count_of_the_latest_epoch_is_what_was_used() -> None:
    zombie = make_record(epoch=1, generated=200, reason="length")
    successor = make_record(epoch=2, generated=120, reason="stop")
    behind = make_record(epoch=2, generated=90, reason="abort")
    entry = merged(successor, zombie, behind)
    assert (entry.epoch, entry.num_generated_tokens, entry.finish_reason) == (2, 120, "stop")


def test_a_checkpoint_is_a_row_of_its_own_and_never_the_final_one() -> None:
    entries = merge_all(
        map(
            entry_of,
            [make_record(generated=128, reason=None), make_record(generated=64, reason=None)],
        )
    )
    [(key, entry)] = entries.items()
    assert key == ("ten_a", "req_a", "checkpoint")
    assert (entry.num_generated_tokens, entry.finish_reason) == (128, None)


def test_what_the_client_was_told_is_how_it_ended() -> None:
    engine = make_record(reason="abort", generated=12)
    api = make_record(reason="stop", author=UsageAuthor.API, generated=9)
    entry = merged(api, engine)
    assert (entry.finish_reason, entry.num_generated_tokens) == ("stop", 12)


def test_an_engines_own_end_beats_a_sweeper_that_came_too_early_and_nothing_else() -> None:
    swept = make_record(author=UsageAuthor.SWEEPER, epoch=0, generated=0, reason="api_lost")
    assert merged(swept, make_record(reason="length")).finish_reason == "length"
    stopped = merged(swept, make_record(reason="abort", generated=70))
    assert (stopped.finish_reason, stopped.num_generated_tokens) == ("api_lost", 70)


def test_an_engine_that_stops_for_nobody_does_not_end_a_request() -> None:
    for reason in ("abort", "api_lost"):
        said = entry_of(make_record(reason=reason))
        assert not said.ends_request
        for author in (UsageAuthor.API, UsageAuthor.SWEEPER):
            end = entry_of(make_record(reason=reason, author=author))
            assert end.ends_request and merge(said, end).ends_request
    assert entry_of(make_record(reason="stop")).ends_request
    assert entry_of(make_record(reason="adapter_corrupt")).ends_request
    assert not entry_of(make_record(reason=None)).ends_request


def test_how_much_was_reasoning_goes_with_how_much_it_was() -> None:
    zombie = reasoned(make_record(epoch=1, generated=200, reason="length"), 150)
    successor = reasoned(make_record(epoch=2, generated=120, reason="stop"), 40)
    behind = reasoned(make_record(epoch=2, generated=90, author=UsageAuthor.API), 60)
    entry = merged(behind, zombie, successor)
    assert (entry.num_generated_tokens, entry.num_reasoning_tokens) == (120, 40)


def test_of_equal_counts_the_one_that_knows_of_reasoning_holds() -> None:
    knows, does_not = reasoned(make_record(generated=10), 5), make_record(generated=10)
    for told in ((knows, does_not), (does_not, knows)):
        assert merged(*told).num_reasoning_tokens == 5


def reasoned(record: UsageRecord, num: int) -> UsageRecord:
    return msgspec.structs.replace(record, num_reasoning_tokens=num)
