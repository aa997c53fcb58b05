"""SmolLM2 with the demo's adapters: PEFT's logits and tokens, and nobody else's text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from torch import Tensor

from app.demo.tenants import ADAPTER_FOLDERS
from engine.config import EngineConfig
from engine.messages import AdapterRef, EngineRequest
from tests.builders.engines import EngineHarness, make_request, tokens_of
from tests.builders.peft_models import Oracle, make_adapter

MAX_LOGIT_ERROR = 1e-3
MAX_BF16_DIVERGENCE = 2e-2
NUM_SOLO_TOKENS = 6
# Where the two likeliest tokens are closer than this, float32 may order them either way.
NEAR_TIE = 1e-3
QUESTIONS = (
    "What is your return policy?",
    "Hello! Who am I talking to?",
    "Do you ship to other countries, and how long does it take?",
    "I forgot my password. What now?",
)


class Firms:
    """The demo's base, its two adapters, and a third that shares no module set with them."""

    def __init__(self, base: Path, folder: Path, num_questions: int) -> None:
        self.base = base
        self.oracle = Oracle(base)
        third = make_adapter(
            base,
            folder / "third",
            seed=5,
            r=5,
            lora_alpha=10,
            spread=0.06,
            target_modules=["k_proj", "down_proj"],
        )
        self.folders: dict[str, Path | None] = {
            "base": None,
            "acme": ADAPTER_FOLDERS / "acme",
            "globex": ADAPTER_FOLDERS / "globex",
            "third": third,
        }
        tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
        self.prompts = [
            tokenizer.encode(
                f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
                add_special_tokens=False,
            ).ids
            for question in QUESTIONS[:num_questions]
        ]


@pytest.fixture(scope="module")
def num_questions() -> int:
    """That everybody asks; `make corpus` asks more."""
    return 2


@pytest.fixture(scope="module")
def firms(demo_base: Path, tmp_path_factory: pytest.TempPathFactory, num_questions: int) -> Firms:
    return Firms(demo_base, tmp_path_factory.mktemp("firms"), num_questions)


@pytest.fixture(scope="module")
def harness(firms: Firms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHarness]:
    config = EngineConfig(pool_bytes=1 << 29, max_num_batched_tokens=96, batch_invariant=True)
    harness = EngineHarness(firms.base, tmp_path_factory.mktemp("store"), config)
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def refs(firms: Firms, harness: EngineHarness) -> dict[str, AdapterRef | None]:
    return {
        name: harness.publish(folder) if folder is not None else None
        for name, folder in firms.folders.items()
    }


def mixed_requests(
    firms: Firms, refs: dict[str, AdapterRef | None], max_tokens: int
) -> list[EngineRequest]:
    """Every adapter and the base ask every question, interleaved."""
    return [
        make_request(f"{name} {number}", prompt, adapter=ref, max_tokens=max_tokens)
        for number, prompt in enumerate(firms.prompts)
        for name, ref in refs.items()
    ]


def test_logits_of_the_demo_adapters_equal_peft_in_a_mixed_batch(
    firms: Firms, harness: EngineHarness, refs: dict[str, AdapterRef | None]
) -> None:
    requests = mixed_requests(firms, refs, max_tokens=8)
    harness.runner.recorded.clear()
    tokens = tokens_of(harness.run(requests))
    for request in requests:
        folder = firms.folders[request.request_id.split()[0]]
        prompt = request.prompt_token_ids
        want = firms.oracle.logits(folder, prompt + tokens[request.request_id])
        error = (harness.logits(request.request_id) - want[len(prompt) - 1 : -1]).abs().max()
        assert float(error) < MAX_LOGIT_ERROR, f"{request.request_id}: {float(error)}"


def test_bfloat16_stays_close_to_float32_peft(firms: Firms, tmp_path: Path) -> None:
    """KL divergence of the next token, which is what a reader of the answer would notice."""
    config = EngineConfig(pool_bytes=1 << 28, dtype="bfloat16")
    harness = EngineHarness(firms.base, tmp_path, config)
    requests = [
        make_request(
            name,
            firms.prompts[0],
            adapter=harness.publish(folder) if folder is not None else None,
            max_tokens=4,
        )
        for name, folder in firms.folders.items()
    ]
    tokens = tokens_of(harness.run(requests))
    harness.close()
    for request in requests:
        prompt = request.prompt_token_ids
        logits = firms.oracle.logits(
            firms.folders[request.request_id], prompt + tokens[request.request_id]
        )
        want = logits[len(prompt) - 1 : -1].log_softmax(dim=-1)
        got = harness.logits(request.request_id).log_softmax(dim=-1)
        divergence = (want.exp() * (want - got)).sum(dim=-1)
        assert float(divergence.max()) < MAX_BF16_DIVERGENCE, request.request_id


@pytest.fixture
def num_greedy_tokens() -> int:
    """Of each answer; `make corpus` asks for more."""
    return 48


def test_greedy_tokens_equal_transformers_and_peft(
    firms: Firms,
    harness: EngineHarness,
    refs: dict[str, AdapterRef | None],
    num_greedy_tokens: int,
) -> None:
    requests = [
        make_request(name, firms.prompts[0], adapter=ref, max_tokens=num_greedy_tokens)
        for name, ref in refs.items()
    ]
    tokens = tokens_of(harness.run(requests))
    for name, folder in firms.folders.items():
        assert len(tokens[name]) == num_greedy_tokens
        assert_greedy(firms.oracle.logits(folder, firms.prompts[0] + tokens[name]), tokens[name])


def assert_greedy(logits: Tensor, tokens: list[int]) -> None:
    """Each token is the likeliest after the ones before it: so it is what greedy search takes.

    logits [prompt + tokens, V] are the oracle's for the whole sequence. Where float32 may order
    the two likeliest either way, either is right.
    """
    rows = logits[-len(tokens) - 1 : -1]
    for index, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        gap = float(row.max() - row[token])
        assert gap < NEAR_TIE, f"token {index} is {token}, not {int(row.argmax())}: {gap} less"


def test_another_firms_tokens_are_not_greedy_so_the_comparison_can_fail(
    firms: Firms, harness: EngineHarness, refs: dict[str, AdapterRef | None]
) -> None:
    request = make_request("globex", firms.prompts[0], adapter=refs["globex"], max_tokens=8)
    tokens = tokens_of(harness.run([request]))["globex"]
    logits = firms.oracle.logits(firms.folders["acme"], firms.prompts[0] + tokens)
    with pytest.raises(AssertionError, match="token 0"):
        assert_greedy(logits, tokens)


@pytest.fixture(scope="module")
def solo(
    firms: Firms, harness: EngineHarness, refs: dict[str, AdapterRef | None]
) -> dict[str, list[int]]:
    """What each request is answered when it is alone."""
    return {
        request.request_id: tokens_of(harness.run([request]))[request.request_id]
        for request in mixed_requests(firms, refs, NUM_SOLO_TOKENS)
    }


@pytest.mark.parametrize("batch_size", [3, 16])
def test_no_answer_depends_on_its_neighbours_or_is_anothers(
    firms: Firms,
    harness: EngineHarness,
    refs: dict[str, AdapterRef | None],
    solo: dict[str, list[int]],
    batch_size: int,
) -> None:
    """Byte for byte, `--batch-invariant`; a failure names whose text leaked."""
    requests = mixed_requests(firms, refs, NUM_SOLO_TOKENS)
    for begin in range(0, len(requests), batch_size):
        for name, got in tokens_of(harness.run(requests[begin : begin + batch_size])).items():
            owners = [other for other, tokens in solo.items() if tokens == got]
            assert name in owners, f"{name} was answered with the text of {owners or 'nobody'}"


def test_the_adapters_answer_differently_so_a_leak_would_be_seen(
    firms: Firms, refs: dict[str, AdapterRef | None], solo: dict[str, list[int]]
) -> None:
    for number in range(len(firms.prompts)):
        answers = [tuple(solo[f"{name} {number}"]) for name in refs]
        assert len(set(answers)) == len(answers)
