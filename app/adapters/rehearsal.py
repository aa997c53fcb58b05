"""A check of a made-up adapter, so that what is made when it is first used is made beforehand.

Libraries import, compile and cache where they are first called; a confined process may not
(`app.adapters.confinement`). Knows nothing of processes.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from lora.base_spec import SUPPORTED_ARCHITECTURES, BaseSpec
from lora.findings import ManifestError
from lora.manifest import read_manifest
from lora.store import WEIGHTS_FILE
from lora.values import check_values

_BASE = BaseSpec(
    model_id="rehearsal",
    known_names=frozenset({"rehearsal"}),
    architecture=SUPPORTED_ARCHITECTURES[0],
    hidden_size=2,
    intermediate_size=2,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    vocab_size=2,
    max_model_len=2,
    tie_word_embeddings=False,
    attention_bias=False,
    mlp_bias=False,
    eos_token_ids=(),
    fingerprint="",
)
_CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 1,
    "target_modules": ".*q_proj",
    "rank_pattern": {"q_proj": 1},
}


def rehearse() -> None:
    """One that is accepted, and one that is refused."""
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    header = {
        f"{prefix}.lora_A.weight": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
        f"{prefix}.lora_B.weight": {"dtype": "F32", "shape": [2, 1], "data_offsets": [8, 16]},
    }
    text = json.dumps(header).encode()
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / WEIGHTS_FILE
        weights.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
        check_values(weights, read_manifest(json.dumps(_CONFIG).encode(), weights, _BASE))
        try:
            read_manifest(b"{}", weights, _BASE)
        except ManifestError:
            return
    raise AssertionError("an empty configuration was accepted")
