"""The fields of adapter_config.json that carry no number: each has a check, or no bearing.

Knows nothing of the base or of tensors. Invariant: a value that would change what the adapter
computes, and that Tenfold does not serve, is refused under its own name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lora.config_values import is_empty, shown
from lora.findings import Findings

_Check = Callable[[object, Findings], None]


def _refuse_unless_empty(name: str, code: str, message: str) -> _Check:
    def check(value: object, findings: Findings) -> None:
        if not is_empty(value):
            findings.refuse(code, message, param=name, actual=shown(value))

    return check


def _refuse_unless_off(name: str, *off: object) -> _Check:
    """An empty object is not nothing: to PEFT it is the variant with its defaults."""

    def check(value: object, findings: Findings) -> None:
        if not any(value is each for each in off):
            findings.refuse("variant_unsupported", _VARIANT, param=name, actual=shown(value))

    return check


def _check_task_type(value: object, findings: Findings) -> None:
    if value not in (None, "CAUSAL_LM"):
        findings.refuse(
            "task_type_unsupported",
            "only causal language models are served",
            param="task_type",
            expected="CAUSAL_LM",
            actual=shown(value),
        )


def _check_init(value: object, findings: Findings) -> None:
    """Only these leave the base as it was; PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA rewrite it."""
    harmless = ("gaussian", "orthogonal", "mica", "eva", "true", "false", "")
    if value is None or isinstance(value, bool):
        return
    if not isinstance(value, str) or value.lower() not in harmless:
        findings.refuse(
            "init_mutates_base",
            "this initialisation changes the base's own weights, so the adapter does not fit it",
            param="init_lora_weights",
            actual=shown(value),
            hint="save it again with save_pretrained(..., "
            "path_initial_model_for_weight_conversion=...), which gives a plain adapter",
        )


def _check_loftq(value: object, findings: Findings) -> None:
    if not is_empty(value):
        findings.refuse(
            "init_mutates_base", "LoftQ changes the base's own weights", param="loftq_config"
        )


def _refuse_unless_object(name: str) -> _Check:
    """What is in it has no bearing, but PEFT makes a configuration of it."""

    def check(value: object, findings: Findings) -> None:
        if value is not None and not isinstance(value, dict):
            findings.refuse("config_schema_invalid", "is not an object", param=name)

    return check


def _warn_of_conversion(name: str) -> _Check:
    def check(value: object, findings: Findings) -> None:
        _refuse_unless_object(name)(value, findings)
        if not is_empty(value):
            findings.warn(
                "init_check_conversion",
                f"{name} is set: be sure that the adapter was converted when it was saved",
                param=name,
            )

    return check


def _check_target_parameters(value: object, findings: Findings) -> None:
    if value == "" or not is_empty(value):
        findings.refuse(
            "target_unknown", "the base has no such expert parameters", param="target_parameters"
        )


def _check_megatron_core(value: object, findings: Findings) -> None:
    if value not in (None, "megatron.core"):
        findings.refuse("config_key_forbidden", "names a module to import", param="megatron_core")


def _check_auto_mapping(value: object, findings: Findings) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        findings.refuse("config_schema_invalid", "is not an object", param="auto_mapping")
        return
    library = value.get("parent_library")
    if library is not None and not _is_transformers(library):
        findings.refuse(
            "config_key_forbidden",
            "names a module to import outside transformers",
            param="auto_mapping.parent_library",
        )


def _is_transformers(library: object) -> bool:
    return isinstance(library, str) and bool(re.fullmatch(r"transformers(\.\w+)*", library))


_VARIANT = "this variant of LoRA is not served"
_FLAGS = ("use_qalora", "alora_invocation_tokens", "monteclora_config")
# Null alone is off: PEFT makes a configuration of what is in them, and of false it cannot.
_OBJECTS = ("use_bdlora", "arrow_config", "kasa_config")

CHECKS: dict[str, _Check] = {
    "task_type": _check_task_type,
    "init_lora_weights": _check_init,
    "loftq_config": _check_loftq,
    "corda_config": _warn_of_conversion("corda_config"),
    "lora_ga_config": _warn_of_conversion("lora_ga_config"),
    "megatron_core": _check_megatron_core,
    "megatron_config": _refuse_unless_empty(
        "megatron_config", "config_key_forbidden", "Megatron's modules are not served"
    ),
    "auto_mapping": _check_auto_mapping,
    "fan_in_fan_out": _refuse_unless_empty(
        "fan_in_fan_out", "fan_in_fan_out_mismatch", "the base has no Conv1D layers"
    ),
    "layer_replication": _refuse_unless_empty(
        "layer_replication",
        "layer_replication_unsupported",
        "the base keeps the layers it has",
    ),
    "target_parameters": _check_target_parameters,
    **{name: _refuse_unless_object(name) for name in ("eva_config", "velora_config")},
    **{name: _refuse_unless_off(name, None, False) for name in _FLAGS},
    **{name: _refuse_unless_off(name, None) for name in _OBJECTS},
}

# Without bearing on inference, so accepted with any value that `CHECKS` lets through:
# docs/adapter-formats.md lists them.
NO_BEARING = frozenset(
    {
        "revision",
        "inference_mode",
        "peft_version",
        "runtime_config",
        "lora_dropout",
        "eva_config",  # a data-driven start of A; what it decided is in rank_pattern
        "velora_config",  # compresses activations in the backward pass only
        "qalora_group_size",  # read only with use_qalora
    }
)
