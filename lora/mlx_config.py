"""adapter_config.json as MLX's trainer writes it: rank, scale and layers, named as it names them.

Knows nothing of tensors. Invariant: MLX is told by its fields and never by shapes, and whatever
the fields leave unclear is refused.

Source: mlx-lm's tuner (`linear_to_lora_layers`, `LoRALinear`, `DoRALinear`) and its `lora.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lora.config_values import is_empty, is_list_of, shown
from lora.findings import Findings, clean
from lora.limits import ManifestLimits

MARKS = frozenset({"lora_parameters", "fine_tune_type"})

_CODE = "format_mlx_unsupported"
_TYPES = {"lora": False, "dora": True}
# How the training went: none of it changes what the adapter computes.
_OF_TRAINING = frozenset(
    {
        *("adapter_path", "batch_size", "chat_feature", "clear_cache_threshold"),
        *("completion_feature", "config", "data", "grad_accumulation_steps", "grad_checkpoint"),
        *("hf_dataset", "iters", "learning_rate", "lr_schedule", "mask_prompt", "max_seq_length"),
        *("optimizer", "optimizer_config", "project_name", "prompt_feature", "report_to"),
        *("resume_adapter_file", "save_every", "seed", "steps_per_eval", "steps_per_report"),
        *("test", "test_batches", "train", "val_batches", "wandb"),
    }
)
_READ = frozenset({*MARKS, "model", "num_layers", "lora_layers"})
# Beside a scale MLX does not read alpha; without one nothing says what it means.
_PARAMETERS = frozenset({"rank", "scale", "dropout", "keys", "alpha"})


@dataclass(frozen=True, slots=True)
class MlxConfig:
    """`scale` multiplies B A as it is. `num_layers`: the last so many were adapted; below 0: all.

    `keys`: the modules of a layer; None where the trainer chose, so that the tensors decide.
    """

    base_name: str | None
    rank: int
    scale: float
    num_layers: int
    keys: frozenset[str] | None
    use_dora: bool


def read_mlx_config(
    fields: Mapping[str, object], limits: ManifestLimits, findings: Findings
) -> MlxConfig | None:
    """The configuration, or None and the reasons why it is not clear."""
    parameters = fields.get("lora_parameters")
    kind = fields.get("fine_tune_type", "lora")
    if not isinstance(parameters, dict) or not isinstance(kind, str) or kind not in _TYPES:
        unclear = "lora_parameters" if kind in _TYPES else "fine_tune_type"
        _refuse(findings, unclear, fields.get(unclear))
        return None
    known = _READ | _OF_TRAINING
    for name, value in [
        *((name, value) for name, value in fields.items() if name not in known),
        *((name, value) for name, value in parameters.items() if name not in _PARAMETERS),
    ]:
        if not is_empty(value):
            _refuse(findings, clean(name, 120), value)
    rank, scale, keys = (parameters.get(name) for name in ("rank", "scale", "keys"))
    num_layers = fields.get("num_layers", fields.get("lora_layers"))
    if type(rank) is not int or not 1 <= rank <= limits.max_rank:
        _refuse(findings, "lora_parameters.rank", rank)
    if not isinstance(scale, (int, float)) or isinstance(scale, bool):
        _refuse(findings, "lora_parameters.scale", scale)
    elif abs(scale) > limits.max_scale:
        findings.refuse("scaling_invalid", "scale is too large", param="lora_parameters.scale")
    if type(num_layers) is not int:
        _refuse(findings, "num_layers", num_layers)
    if keys is not None and (not is_list_of(keys, str) or len(keys) > limits.max_patterns):
        _refuse(findings, "lora_parameters.keys", keys)
    if findings.has_errors:
        return None
    assert isinstance(rank, int) and isinstance(num_layers, int)
    assert isinstance(scale, (int, float))
    name = fields.get("model")
    return MlxConfig(
        base_name=clean(name, limits.max_base_name_bytes) if isinstance(name, str) else None,
        rank=rank,
        scale=float(scale),
        num_layers=num_layers,
        keys=None if keys is None else frozenset(keys),
        use_dora=_TYPES[kind],
    )


def _refuse(findings: Findings, param: str, value: object) -> None:
    findings.refuse(
        _CODE,
        f"an MLX adapter whose {param} is not clear; convert it to PEFT's format",
        param=param,
        actual=shown(value),
    )
