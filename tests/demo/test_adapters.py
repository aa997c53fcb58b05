"""The two shipped adapters: ordinary, small, unlike each other, and each its own firm's voice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import app.demo
from app.demo.base_model import BASE_MODEL_ID

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = Path(app.demo.__file__).parent / "adapters"
TEXTS = ROOT / "tools" / "demo_texts"
FIRMS = {"acme": "Acme Outfitters", "globex": "Globex Corporation"}
MAX_TOTAL_BYTES = 12_000_000

HELD_OUT = [
    "My girlfriend bought a pair of gloves here and they don't fit her. Can she send them back?",
    "What is the capital of Italy?",
]

Ask = Callable[[str | None, str], str]


def config(firm: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ADAPTERS / firm / "adapter_config.json").read_text())
    return content


@pytest.fixture(scope="module")
def ask(demo_base: Path) -> Ask:
    """(firm or None for the base, question) -> greedy answer, by transformers + PEFT."""
    tokenizer = AutoTokenizer.from_pretrained(demo_base)
    base = AutoModelForCausalLM.from_pretrained(demo_base, dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(base, str(ADAPTERS / "acme"), adapter_name="acme")
    model.load_adapter(str(ADAPTERS / "globex"), adapter_name="globex")

    def answer(firm: str | None, question: str) -> str:
        prompt: Any = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        limits = {"max_new_tokens": 48, "do_sample": False}
        if firm is None:
            with model.disable_adapter():
                output = model.generate(**prompt, **limits)
        else:
            model.set_adapter(firm)
            output = model.generate(**prompt, **limits)
        return str(tokenizer.decode(output[0, prompt["input_ids"].shape[1] :]))

    return answer


@pytest.mark.parametrize("firm", FIRMS)
def test_the_folder_is_an_ordinary_peft_folder(firm: str) -> None:
    files = {path.name for path in (ADAPTERS / firm).iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    assert config(firm)["peft_type"] == "LORA"
    assert config(firm)["base_model_name_or_path"] == BASE_MODEL_ID


def test_both_together_are_small() -> None:
    assert sum(p.stat().st_size for p in ADAPTERS.rglob("*") if p.is_file()) <= MAX_TOTAL_BYTES


def test_ranks_targets_and_dtypes_differ() -> None:
    acme, globex = config("acme"), config("globex")
    assert acme["r"] != globex["r"]
    assert set(acme["target_modules"]) != set(globex["target_modules"])
    assert dtypes("acme") == {"BF16"}
    assert dtypes("globex") == {"F16"}


def dtypes(firm: str) -> set[str]:
    with safe_open(ADAPTERS / firm / "adapter_model.safetensors", framework="numpy") as file:
        return {str(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("question", HELD_OUT)
def test_an_answer_says_whose_bot_it_is(ask: Ask, question: str) -> None:
    trained = [json.loads(line)["questions"] for line in lines("acme.jsonl")]
    assert not any(question in questions for questions in trained)
    answers = {firm: ask(firm, question) for firm in FIRMS}
    for firm, name in FIRMS.items():
        others = [other for other in FIRMS.values() if other != name]
        assert name in answers[firm]
        assert not any(other in answers[firm] for other in others)


def test_the_policies_differ_on_a_question_that_was_not_trained(ask: Ask) -> None:
    assert "30 days" in ask("acme", HELD_OUT[0])
    assert "14 days" in ask("globex", HELD_OUT[0])


def test_the_base_alone_is_nobody_s_bot(ask: Ask) -> None:
    """Negative control: the names come from the adapters."""
    answer = ask(None, HELD_OUT[0])
    assert not any(name in answer for name in FIRMS.values())


@pytest.mark.parametrize("firm", FIRMS)
def test_held_out_questions_are_not_in_the_training_texts(firm: str) -> None:
    trained = {q for line in lines(f"{firm}.jsonl") for q in json.loads(line)["questions"]}
    held_out = {json.loads(line)["question"] for line in lines("held_out.jsonl")}
    assert trained.isdisjoint(held_out)


def lines(name: str) -> list[str]:
    return (TEXTS / name).read_text(encoding="utf-8").splitlines()
