"""Tiny random Llama bases, adapters that PEFT itself saved, and PEFT's own logits: the oracle."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 128
MODEL_ID = "tenfold-test/T"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "rslora_all_linear": {
        "r": 16,
        "lora_alpha": 16,
        "use_rslora": True,
        "target_modules": "all-linear",
    },
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": [*ATTENTION, "down_proj"],
        "rank_pattern": {"v_proj": 2, r"layers\.1\.self_attn\.q_proj": 10},
        "alpha_pattern": {"q_proj": 32},
    },
    "rslora_rank_pattern": {
        "r": 4,
        "lora_alpha": 8,
        "use_rslora": True,
        "target_modules": ["q_proj", "gate_proj"],
        "rank_pattern": {"gate_proj": 9},
    },
    "regex": {"r": 3, "lora_alpha": 8, "target_modules": r".*\.layers\.[01]\..*(q_proj|o_proj)"},
    "one_layer": {
        "r": 14,
        "lora_alpha": 14,
        "target_modules": ["k_proj", "up_proj"],
        "layers_to_transform": [1],
    },
    "rank_1": {"r": 1, "lora_alpha": 4, "target_modules": ["gate_proj"]},
    "rank_512": {"r": 512, "lora_alpha": 64, "target_modules": ["q_proj", "down_proj"]},
    "negative_alpha": {"r": 8, "lora_alpha": -8, "target_modules": ["o_proj", "up_proj"]},
}


# What PEFT can train beside A and B; each is served exactly on a base that has what it needs.
FORMS: dict[str, dict[str, Any]] = {
    "dora": {"r": 4, "target_modules": ["q_proj", "down_proj"], "use_dora": True},
    "dora_rslora_everywhere": {
        "r": 6,
        "lora_alpha": 12,
        "use_dora": True,
        "use_rslora": True,
        "target_modules": [*ATTENTION, "gate_proj", "up_proj", "down_proj"],
    },
    "dora_embeddings": {
        "r": 4,
        "use_dora": True,
        "target_modules": ["v_proj", "embed_tokens", "lm_head"],
    },
    "lora_bias": {"r": 4, "lora_bias": True, "target_modules": ["q_proj", "v_proj", "up_proj"]},
    "head": {"r": 5, "target_modules": ["lm_head", "o_proj"]},
    "embedding": {"r": 5, "target_modules": ["embed_tokens", "k_proj"]},
    "embedding_and_head": {
        "r": 3,
        "use_rslora": True,
        "target_modules": ["embed_tokens", "lm_head"],
        "rank_pattern": {"lm_head": 7},
    },
    "saved_head_and_embedding": {
        "r": 4,
        "target_modules": ["q_proj"],
        "modules_to_save": ["lm_head", "embed_tokens"],
    },
    "saved_embedding": {
        "r": 4,
        "target_modules": ["q_proj"],
        "modules_to_save": ["embed_tokens"],
    },
    "saved_head": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "saved_norms": {
        "r": 4,
        "target_modules": ["q_proj"],
        "modules_to_save": ["norm", "input_layernorm"],
    },
    "tokens": {"r": 4, "target_modules": ["q_proj"], "trainable_token_indices": [9, 5, 77]},
    "tokens_of_both": {
        "r": 4,
        "target_modules": ["q_proj"],
        "trainable_token_indices": {"embed_tokens": [5, 9], "lm_head": [3]},
    },
    "dora_saved_norm_and_tokens": {
        "r": 4,
        "use_dora": True,
        "target_modules": ["v_proj", "up_proj"],
        "modules_to_save": ["model.norm"],
        "trainable_token_indices": [5, 9],
    },
}
# Those that need a base with biases.
BIAS_FORMS: dict[str, dict[str, Any]] = {
    "bias_lora_only": {"r": 4, "bias": "lora_only", "target_modules": ["q_proj", "down_proj"]},
    "bias_all": {"r": 4, "bias": "all", "target_modules": ["v_proj", "gate_proj"]},
    "bias_all_and_lora_bias": {
        "r": 4,
        "bias": "all",
        "lora_bias": True,
        "target_modules": ["q_proj", "k_proj", "o_proj"],
    },
    "dora_bias_all": {"r": 4, "bias": "all", "use_dora": True, "target_modules": ["q_proj"]},
}
# Those of a model whose projections are fused, served on a base where they are not.
FUSED_FORMS: dict[str, dict[str, Any]] = {
    "fused": {"r": 4, "target_modules": ["qkv_proj", "gate_up_proj"]},
    "fused_all_linear": {"r": 3, "use_rslora": True, "target_modules": "all-linear"},
    "fused_patterns": {
        "r": 4,
        "target_modules": ["qkv_proj", "down_proj"],
        "rank_pattern": {"qkv_proj": 6},
        "layers_to_transform": [0, 2],
    },
    "fused_dora": {"r": 4, "use_dora": True, "target_modules": ["qkv_proj", "o_proj"]},
    "fused_lora_bias": {"r": 4, "lora_bias": True, "target_modules": ["gate_up_proj"]},
}
# Those that keep the tie of a tied base.
TIED_FORMS: dict[str, dict[str, Any]] = {
    "kept_tie_saved": {
        "r": 4,
        "target_modules": ["q_proj"],
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "kept_tie_adapted": {
        "r": 4,
        "target_modules": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "kept_tie_tokens": {
        "r": 4,
        "target_modules": ["q_proj"],
        "trainable_token_indices": {"embed_tokens": [5, 9], "lm_head": [5, 9]},
    },
}


def make_tiny_llama(folder: Path, *, seed: int = 1, **changes: Any) -> Path:
    """Save a random Llama: hidden 64, intermediate 96, 3 layers, 4 heads over 2 kv heads."""
    torch.manual_seed(seed)
    fields: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **changes,
    }
    model = LlamaForCausalLM(LlamaConfig(**fields))
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["_name_or_path"] = MODEL_ID
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_adapter(
    base: Path,
    folder: Path,
    *,
    seed: int,
    file_dtype: torch.dtype = torch.float32,
    spread: float = 0.1,
    model: Any = None,
    **config: Any,
) -> Path:
    """Let PEFT save an adapter over the model in `base`: everything that it trains is random, A and
    B of `spread`, the rest near where it began.

    model: that of `base`, where it is read already; it is changed.
    """
    torch.manual_seed(seed)
    if model is None:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with _without_advice():
        wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if ".lora_magnitude_vector" in name or "layernorm" in name or ".norm." in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.6, 1.5))
            elif ".lora_" in name:
                parameter.normal_(0.0, spread)
            elif parameter.requires_grad:
                parameter.add_(torch.empty_like(parameter).normal_(0.0, spread))
    with _without_advice():
        wrapped.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    weights = folder / "adapter_model.safetensors"
    if file_dtype != torch.float32:
        tensors = {name: value.to(file_dtype) for name, value in load_file(weights).items()}
        save_file(tensors, weights, metadata={"format": "pt"})
    return folder


@contextmanager
def _without_advice() -> Iterator[None]:
    """PEFT warns of tied embeddings and of biases that cannot be merged; here they are meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        yield


class Oracle:
    """transformers and PEFT in float32 over one base, which is read once: what is true."""

    def __init__(self, base: Path) -> None:
        self._base = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        self._models: dict[Path, Any] = {}

    def fresh(self) -> Any:
        """A model of the base, for the caller to change."""
        return copy.deepcopy(self._base)

    def model(self, adapter: Path | None) -> Any:
        if adapter is None:
            return self._base
        if adapter not in self._models:
            with _without_advice():
                model = peft.PeftModel.from_pretrained(self.fresh(), adapter)
            self._models[adapter] = model.eval()
        return self._models[adapter]

    def forget(self) -> None:
        """Free the adapters' models; they are made again where they are wanted."""
        self._models.clear()

    @torch.inference_mode()
    def logits(self, adapter: Path | None, token_ids: list[int]) -> Tensor:
        """[len(token_ids), V]: the logits at every position."""
        logits: Tensor = self.model(adapter)(torch.tensor([token_ids])).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, adapter: Path | None, prompt: list[int], num_tokens: int) -> list[int]:
        """Exactly `num_tokens` greedy tokens, ends of sequence included."""
        output = self.model(adapter).generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num_tokens,
            min_new_tokens=None,
            eos_token_id=-1,
            pad_token_id=0,
            do_sample=False,
        )
        return list(output[0, len(prompt) :].tolist())
