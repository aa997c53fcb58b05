"""A base is described by its folder alone, and only bases that can be served are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lora.base_spec import BaseSpec, UnsupportedBaseError

CONFIG: dict[str, Any] = {
    "_name_or_path": "tenfold/tiny",
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def write_base(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


def test_shapes_names_and_limits_are_read(tmp_path: Path) -> None:
    base = BaseSpec.from_folder(write_base(tmp_path))
    assert (base.model_id, base.num_layers, base.head_dim) == ("tenfold/tiny", 3, 16)
    assert (base.max_model_len, base.tie_word_embeddings) == (256, True)
    assert base.linear_modules() == {
        "self_attn.q_proj": (64, 64),
        "self_attn.k_proj": (64, 32),
        "self_attn.v_proj": (64, 32),
        "self_attn.o_proj": (64, 64),
        "mlp.gate_proj": (64, 96),
        "mlp.up_proj": (64, 96),
        "mlp.down_proj": (96, 64),
    }


def test_a_head_dim_of_its_own_widens_the_projections(tmp_path: Path) -> None:
    base = BaseSpec.from_folder(write_base(tmp_path, head_dim=32))
    assert base.linear_modules()["self_attn.q_proj"] == (64, 128)
    assert base.linear_modules()["self_attn.o_proj"] == (128, 64)


def test_the_served_id_and_the_configs_own_name_are_both_known(tmp_path: Path) -> None:
    base = BaseSpec.from_folder(write_base(tmp_path), model_id="acme/served")
    assert base.model_id == "acme/served"
    assert base.known_names == {"acme/served", "tenfold/tiny"}


def test_without_a_name_the_folder_gives_it(tmp_path: Path) -> None:
    folder = write_base(tmp_path / "my-base", _name_or_path="")
    assert BaseSpec.from_folder(folder).model_id == "my-base"


def test_the_generation_configs_end_tokens_come_first(tmp_path: Path) -> None:
    write_base(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert BaseSpec.from_folder(tmp_path).eos_token_ids == (7, 2)


def test_the_fingerprint_is_of_configuration_and_tokenizer(tmp_path: Path) -> None:
    folder = write_base(tmp_path)
    plain = BaseSpec.from_folder(folder).fingerprint
    write_base(folder, _name_or_path="elsewhere", torch_dtype="bfloat16")
    assert BaseSpec.from_folder(folder).fingerprint == plain
    write_base(folder, rope_theta=5.0)
    assert BaseSpec.from_folder(folder).fingerprint != plain
    write_base(folder)
    (folder / "tokenizer.json").write_text("{}")
    assert BaseSpec.from_folder(folder).fingerprint != plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
        ({"architectures": None, "model_type": "gpt2"}, "architecture None"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers"),
        ({"vocab_size": True}, "vocab_size"),
    ],
)
def test_what_is_not_served_says_why(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedBaseError, match=message):
        BaseSpec.from_folder(write_base(tmp_path, **changes))


@pytest.mark.parametrize("content", [None, "[]", "{"])
def test_a_folder_without_a_configuration_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UnsupportedBaseError):
        BaseSpec.from_folder(tmp_path)
