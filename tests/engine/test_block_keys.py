"""Equal keys mean equal content: nothing that K and V depend on is missing from a block's key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine.block_keys import BlockHasher
from engine.messages import AdapterRef, EngineRequest
from tests.builders.engines import make_request

BLOCK_SIZE = 4
SECRET = bytes(range(32))
PREFIX = tuple(range(50, 60))
"""Two blocks and a half."""


def hasher(**changes: object) -> BlockHasher:
    arguments = {"block_size": BLOCK_SIZE, "fingerprint": "sha256:base", "secret": SECRET}
    return BlockHasher(**{**arguments, **changes})


def ref(digest: str, tenant_id: str = "ten_a") -> AdapterRef:
    return AdapterRef(tenant_id=tenant_id, digest=digest, locator="anywhere")


def keys_of(request: EngineRequest, **changes: object) -> list[bytes]:
    return hasher(**changes).keys(request).keys


ORIGIN = make_request("r", list(range(12)), adapter=ref("sha256:a"))
OTHERS = {
    "tenant": structs.replace(ORIGIN, tenant_id="ten_b"),
    "adapter": structs.replace(ORIGIN, adapter=ref("sha256:b")),
    "base instead of an adapter": structs.replace(ORIGIN, adapter=None),
    "first token": structs.replace(ORIGIN, prompt_token_ids=[9, *range(1, 12)]),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_block_of_another_one_has_another_key(other: str) -> None:
    one, two = keys_of(ORIGIN), keys_of(OTHERS[other])
    assert len(one) == len(two) == 3
    assert not set(one) & set(two)


@pytest.mark.parametrize("change", [{"fingerprint": "sha256:other"}, {"secret": bytes(32)}])
def test_keys_depend_on_the_base_and_on_the_engines_secret(change: dict[str, object]) -> None:
    assert not set(keys_of(ORIGIN)) & set(keys_of(ORIGIN, **change))


def test_keys_do_not_depend_on_request_locator_or_sampling() -> None:
    again = make_request("other", list(range(12)), adapter=ref("sha256:a"), temperature=1.0)
    again = structs.replace(again, epoch=7, adapter=structs.replace(again.adapter, locator="moved"))
    assert keys_of(again) == keys_of(ORIGIN)


def test_fields_that_run_together_have_different_keys() -> None:
    one, two = hasher(fingerprint="xsha"), hasher(fingerprint="sha")
    longer = structs.replace(ORIGIN, adapter=ref("sha256:ax"))
    assert one.keys(ORIGIN).keys != two.keys(longer).keys
    assert hasher().public_root != hasher().root("", None), "no tenant's name gives no salt"


tokens = st.lists(st.integers(0, 2), max_size=14)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(one=tokens, two=tokens)
def test_keys_are_equal_exactly_as_far_as_the_tokens_are(one: list[int], two: list[int]) -> None:
    num_equal = next(
        (i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )
    keys = [keys_of(make_request("r", prompt)) for prompt in (one, two)]
    assert [len(each) for each in keys] == [len(one) // BLOCK_SIZE, len(two) // BLOCK_SIZE]
    shared = [a == b for a, b in zip(*keys, strict=False)]
    assert shared == [i < num_equal // BLOCK_SIZE for i in range(len(shared))]


@pytest.mark.parametrize("at_once", [0, 3, 4, 9])
def test_keys_grow_with_the_sequence_as_if_all_had_been_known(at_once: int) -> None:
    known = list(range(20))
    grown = hasher().keys(make_request("r", known[:at_once]))
    for num_tokens in range(at_once, 21):
        grown.extend(known, num_tokens)
    assert grown.keys == keys_of(make_request("r", known))
    delivered = structs.replace(make_request("r", known[:7]), delivered_token_ids=known[7:])
    assert keys_of(delivered) == grown.keys


def test_a_prefix_that_the_operator_shares_is_public_on_the_base_and_what_follows_is_not() -> None:
    prompt = [*PREFIX[:8], 1, 2, 3, 4, 5, 6, 7, 8]
    base = make_request("r", prompt, tenant_id="ten_a")
    tuned = structs.replace(base, adapter=ref("sha256:a"))
    shared = {"shared_prefixes": [PREFIX]}
    mine, yours = (
        keys_of(structs.replace(base, tenant_id=each), **shared) for each in ("ten_a", "ten_b")
    )
    assert [a == b for a, b in zip(mine, yours, strict=True)] == [True, True, False, False]
    assert not set(keys_of(tuned, **shared)) & set(mine), "never with an adapter"
    assert keys_of(tuned, **shared) == keys_of(tuned)
    assert not set(mine) & set(keys_of(base)), "a block that is public is nobody's private one"


def test_a_block_that_the_shared_prefix_only_begins_is_not_public() -> None:
    whole = make_request("r", [*PREFIX, 1, 2], tenant_id="ten_a")
    other = structs.replace(whole, tenant_id="ten_b")
    mine, yours = (keys_of(each, shared_prefixes=[PREFIX]) for each in (whole, other))
    assert [a == b for a, b in zip(mine, yours, strict=True)] == [True, True, False]


@pytest.mark.parametrize("prompt", [[], [-1] * 8, [1 << 32] * 8])
def test_what_is_no_prompt_has_no_keys_and_breaks_no_thread(prompt: list[int]) -> None:
    assert keys_of(make_request("r", prompt)) == []
