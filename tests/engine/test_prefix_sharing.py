"""The whole engine over a simulated device: who shares blocks, when, and that hits are counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_keys import BlockHasher
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import AdapterRef, EngineRequest, TokenOutput
from tests.builders.adapters import TINY_BASE
from tests.builders.engines import make_request, tokens_of
from tests.builders.scripted_loader import BLOCK_SIZE, PAGE_BYTES, ScriptedLoader, make_ref
from tests.builders.simulated_device import SimulatedDevice, generate

PROMPT = [3 + i % 50 for i in range(5 * BLOCK_SIZE + 3)]
CACHED = 5 * BLOCK_SIZE


class Engine:
    def __init__(self, max_in_flight: int = 1, num_pages: int = 60, **config: Any) -> None:
        settings = EngineConfig(
            block_size=BLOCK_SIZE,
            pool_bytes=num_pages * PAGE_BYTES,
            debug_poison_pages=True,
            **config,
        )
        self.device = SimulatedDevice(settings, max_in_flight)
        loader = ScriptedLoader(on_install=self.device.install)
        self.core = EngineCore(settings, TINY_BASE, self.device, loader, "sim")

    def run(self, *requests: EngineRequest) -> dict[str, list[TokenOutput]]:
        outputs: dict[str, list[TokenOutput]] = {}
        for request in requests:
            self.core.add(request)
        while self.core.has_work:
            batches = self.core.step()
            self.core.check_integrity()
            for batch in batches.values():
                for output in batch.outputs:
                    outputs.setdefault(output.request_id, []).append(output)
        for request in requests:
            max_tokens = request.sampling.max_tokens
            want = generate(request.prompt_token_ids, request.adapter, max_tokens)
            assert tokens_of(outputs)[request.request_id] == want
        return outputs

    def cached(self, *requests: EngineRequest) -> list[int]:
        """How many tokens of each prompt were cached: told the same with each output."""
        outputs = self.run(*requests)
        told = [{part.num_cached_tokens for part in outputs[each.request_id]} for each in requests]
        assert all(len(each) == 1 for each in told)
        return [each.pop() for each in told]


def choices(number: int, adapter: AdapterRef | None = None) -> list[EngineRequest]:
    """The sequences of one answer, as the API sends them."""
    return [
        make_request(f"answer-{i}", PROMPT, adapter=adapter, seed=i, max_tokens=6)
        for i in range(number)
    ]


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("budget", [7, 128])
def test_choices_of_one_answer_compute_their_prompt_once(max_in_flight: int, budget: int) -> None:
    engine = Engine(max_in_flight, max_num_batched_tokens=budget)
    assert engine.cached(*choices(8)) == [0] + [CACHED] * 7
    engine = Engine(max_in_flight, max_num_batched_tokens=budget)
    assert engine.cached(*choices(4, make_ref("a"))) == [0] + [CACHED] * 3


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_choices_hold_one_copy_of_their_prompt(max_in_flight: int) -> None:
    engine = Engine(max_in_flight)
    for request in choices(8):
        engine.core.add(request)
    while len(engine.core.step()) == 0 or engine.core.scheduler.num_running < 8:
        engine.core.check_integrity()
    assert engine.core.pool.num_held <= 5 + 8 * 2
    apart = Engine(max_in_flight, prefix_caching=False)
    for request in choices(8):
        apart.core.add(request)
    while len(apart.core.step()) == 0 or apart.core.scheduler.num_running < 8:
        apart.core.check_integrity()
    assert apart.core.pool.num_held >= 8 * 6


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_an_answer_goes_on_when_the_choice_that_computes_the_prompt_is_aborted(
    max_in_flight: int,
) -> None:
    engine = Engine(max_in_flight, max_num_batched_tokens=BLOCK_SIZE)
    first, *others = choices(4)
    for request in (first, *others):
        engine.core.add(request)
    for _ in range(3):
        engine.core.step()
    assert engine.core.scheduler.num_running == 1
    assert engine.core.abort(first.request_id, epoch=1)
    tokens: dict[str, list[int]] = {}
    while engine.core.has_work:
        for batch in engine.core.step().values():
            for output in batch.outputs:
                assert output.num_cached_tokens >= BLOCK_SIZE, "what it computed is not lost"
                tokens.setdefault(output.request_id, []).extend(output.token_ids)
        engine.core.check_integrity()
    assert tokens == {each.request_id: generate(PROMPT, None, 6) for each in others}


def test_the_same_text_under_other_adapters_the_base_and_other_tenants_never_hits() -> None:
    engine = Engine()
    refs = {"a": make_ref("a"), "b": make_ref("b"), "base": None}

    def ask(tenant_id: str) -> list[int]:
        return [
            engine.cached(make_request(name, PROMPT, adapter=ref, tenant_id=tenant_id))[0]
            for name, ref in refs.items()
        ]

    assert ask("one") == [0, 0, 0]
    assert ask("two") == [0, 0, 0]
    assert ask("one") == [CACHED] * 3, "and the same ones again do"


def leave_out(*, adapter: bool, tenant: bool) -> type[BlockHasher]:
    class Leaky(BlockHasher):
        """Negative control: a key without what it has to hold."""

        def root(self, tenant_id: str, ref: AdapterRef | None) -> bytes:
            return super().root("" if tenant else tenant_id, None if adapter else ref)

    return Leaky


@pytest.mark.parametrize("field", ["adapter", "tenant"])
def test_a_key_without_adapter_or_tenant_hits_where_it_must_not(field: str) -> None:
    engine = Engine()
    hasher = leave_out(adapter=field == "adapter", tenant=field == "tenant")
    engine.core._hasher = hasher(BLOCK_SIZE, TINY_BASE.fingerprint, bytes(32))
    assert engine.cached(make_request("r", PROMPT, tenant_id="one")) == [0]
    if field == "tenant":
        assert engine.cached(make_request("r", PROMPT, tenant_id="two")) == [CACHED]
    else:
        tuned = make_request("r", PROMPT, adapter=make_ref("a"), tenant_id="one")
        assert engine.cached(tuned) == [CACHED]


def test_a_prefix_of_the_operators_is_shared_between_tenants_on_the_base_only() -> None:
    engine = Engine(shared_prefixes=(tuple(PROMPT[: 2 * BLOCK_SIZE + 1]),))
    ref = make_ref("a")
    tuned = [make_request("r", PROMPT, adapter=ref, tenant_id=each) for each in ("one", "two")]
    plain = [make_request("r", PROMPT, tenant_id=each) for each in ("one", "two", "one")]
    assert [engine.cached(each)[0] for each in tuned] == [0, 0]
    assert [engine.cached(each)[0] for each in plain] == [0, 2 * BLOCK_SIZE, CACHED]


def test_a_conversation_finds_its_own_answers_cached() -> None:
    engine = Engine(num_pages=100)
    prompt, cached = list(PROMPT), []
    for _ in range(4):
        request = make_request("turn", prompt, max_tokens=2 * BLOCK_SIZE)
        outputs = engine.run(request)["turn"]
        cached.append(outputs[-1].num_cached_tokens)
        prompt += [token for part in outputs for token in part.token_ids] + [1]
    assert cached == [0, 56, 72, 88]


def test_with_caching_off_nothing_is_kept_and_nothing_hits() -> None:
    engine = Engine(prefix_caching=False)
    assert engine.cached(*choices(3)) == [0, 0, 0]
    assert engine.cached(*choices(3)) == [0, 0, 0]
    assert engine.core.pool.num_free == engine.core.pool.num_pages


@pytest.mark.parametrize("where", ["broken_launches", "broken_results"])
def test_what_a_broken_step_computed_is_never_shared(where: str) -> None:
    engine = Engine(2, max_num_batched_tokens=16)
    setattr(engine.device, where, {1})
    engine.core.add(make_request("broken", PROMPT))
    while engine.core.has_work:
        engine.core.step()
        engine.core.check_integrity()
    assert engine.core.pool.num_cold == 0
    assert engine.cached(make_request("again", PROMPT)) == [0]


def test_nor_is_what_a_step_computed_that_broke_after_its_client_had_gone() -> None:
    engine = Engine(2, max_num_batched_tokens=BLOCK_SIZE)
    engine.device.broken_results = {1}
    engine.core.add(make_request("gone", PROMPT))
    for _ in range(2):
        engine.core.step()
    assert engine.core.abort("gone", epoch=1)
    while engine.core.has_work:
        engine.core.step()
        engine.core.check_integrity()
    assert engine.core.pool.num_free == engine.core.pool.num_pages
    assert engine.cached(make_request("again", PROMPT)) == [0]


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    shapes=st.lists(
        st.tuples(
            st.integers(1, 60),
            st.integers(0, 2),
            st.sampled_from([None, "a", "b"]),
            st.sampled_from(["one", "two"]),
            st.integers(1, 12),
        ),
        min_size=2,
        max_size=14,
    ),
    num_pages=st.integers(14, 60),
    budget=st.integers(1, 64),
    max_num_seqs=st.integers(1, 6),
    max_in_flight=st.integers(1, 2),
    share=st.sampled_from([0.0, 0.25, 1.0]),
)
def test_tokens_are_those_of_a_solo_run_whatever_is_shared(
    shapes: list[tuple[int, int, str | None, str, int]],
    num_pages: int,
    budget: int,
    max_num_seqs: int,
    max_in_flight: int,
    share: float,
) -> None:
    engine = Engine(
        max_in_flight,
        num_pages,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        prefix_protected_share=share,
    )
    requests = [
        make_request(
            f"r{number}",
            [*(PROMPT + PROMPT)[:length], ending],
            adapter=make_ref(name) if name else None,
            tenant_id=tenant_id,
            max_tokens=max_tokens,
        )
        for number, (length, ending, name, tenant_id, max_tokens) in enumerate(shapes)
    ]
    engine.run(*requests)
    engine.run(*requests)
    assert engine.core.scheduler.num_available_pages == num_pages
