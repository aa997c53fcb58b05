"""Bases of the corpus, and which variants mean something on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.builders.peft_models import (
    BIAS_FORMS,
    FORMS,
    TIED_FORMS,
    VARIANTS,
    VOCAB_SIZE,
    make_tiny_llama,
)

# SmolLM2-135M's own configuration, of which the first layers and tokens are kept: more of them add
# time and no new shape. `test_real_base.py` has all of it.
SMOLLM2: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 8192,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "initializer_range": 0.041666666666666664,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
}


@dataclass(frozen=True, slots=True)
class World:
    """A base's configuration, and the variants that are tried on it."""

    changes: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]
    vocab_size: int = VOCAB_SIZE
    options: Mapping[str, Any] = field(default_factory=dict)

    def make_base(self, folder: Path) -> Path:
        return make_tiny_llama(folder, **self.changes)


WORLDS = {
    "untied": World({}, {**VARIANTS, **FORMS}),
    "tied": World({"tie_word_embeddings": True}, {**FORMS, **TIED_FORMS}),
    "biased": World(
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        {**BIAS_FORMS, **FORMS, "plain": VARIANTS["plain"]},
    ),
    "SmolLM2": World(
        SMOLLM2,
        {**FORMS, **TIED_FORMS, "plain": VARIANTS["plain"], "patterns": VARIANTS["patterns"]},
        vocab_size=SMOLLM2["vocab_size"],
        options={"spread": 0.02},
    ),
}
