"""What the checks of an adapter found, and the stable codes they found it under.

Knows nothing of HTTP beyond each code's status number. Invariant: a code that is not in the tables
cannot be reported, and codes never change their meaning: they are API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]

MAX_FINDINGS_PER_CODE = 20
_MAX_TEXT_CHARS = 500
_NUM_EXAMPLES = 5


class Refusal(NamedTuple):
    """HTTP status and one line on when a code is given."""

    status: int
    summary: str


# NOTE: the order is the order of precedence: an error that lists several findings takes the code
# of the first in this table. Container, then safetensors, then configuration, then tensors.
REFUSALS: dict[str, Refusal] = {
    "pickle_not_allowed": Refusal(
        415, "The weights are a Python pickle (.bin, .pt), never opened."
    ),
    "archive_not_supported": Refusal(415, "The weights are an archive (zip, tar, gz, 7z, ...)."),
    "format_unsupported": Refusal(415, "The weights are in another known format (NumPy, HDF5)."),
    "format_gguf_unsupported": Refusal(415, "The weights are a GGUF file."),
    "format_lfs_pointer": Refusal(422, "A file is a git-lfs pointer, not the file itself."),
    "format_kohya_unsupported": Refusal(415, "Tensor names are kohya's (lora_down / lora_up)."),
    "safetensors_truncated": Refusal(400, "The file is shorter than eight bytes."),
    "safetensors_header_length": Refusal(400, "The header's length is zero or exceeds the file."),
    "safetensors_header_too_large": Refusal(413, "The header exceeds the limit (16 MiB)."),
    "too_many_tensors": Refusal(413, "The file holds more tensors than the limit (200,000)."),
    "safetensors_header_invalid": Refusal(400, "The header is not the JSON the format asks for."),
    "safetensors_duplicate_key": Refusal(400, "The header names a tensor or a field twice."),
    "safetensors_offsets_invalid": Refusal(400, "Tensors overlap, leave holes or lie outside."),
    "safetensors_size_mismatch": Refusal(400, "A tensor's shape and dtype do not give its bytes."),
    "safetensors_length_mismatch": Refusal(400, "The data is cut off, or something follows it."),
    "safetensors_dtype_unknown": Refusal(400, "A dtype that the safetensors format does not have."),
    "tensor_name_invalid": Refusal(422, "A tensor's name is too long or holds odd characters."),
    "tensor_empty": Refusal(422, "A tensor has no elements."),
    "adapter_empty": Refusal(422, "The file holds no tensors."),
    "tensor_nonfinite": Refusal(422, "A tensor holds NaN or infinity."),
    "dtype_overflow": Refusal(
        422, "A number beyond 65,504, the largest float16: sums with it overflow."
    ),
    "dtype_unsupported": Refusal(422, "A dtype other than F32, F16 or BF16."),
    "config_missing": Refusal(422, "There is no adapter_config.json."),
    "config_json_invalid": Refusal(400, "The configuration is not plain, finite, bounded JSON."),
    "config_duplicate_key": Refusal(400, "The configuration names a field twice."),
    "config_schema_invalid": Refusal(422, "A field of the configuration has the wrong type."),
    "rank_invalid": Refusal(422, "r, or a value of rank_pattern, is not a positive integer."),
    "rank_too_large": Refusal(422, "A rank above the limit (1024)."),
    "scaling_invalid": Refusal(422, "lora_alpha is not a number, or |alpha / r| exceeds 10,000."),
    "peft_type_unsupported": Refusal(422, "peft_type is missing or is not LORA."),
    "task_type_unsupported": Refusal(422, "task_type is not CAUSAL_LM."),
    "variant_unsupported": Refusal(
        422, "A LoRA variant that is not served (aLoRA, KaSA, QA-LoRA, ...)."
    ),
    "init_mutates_base": Refusal(422, "Its initialisation changed the base (PiSSA, OLoRA, ...)."),
    "bias_unsupported": Refusal(422, "A trained bias of a module that has none in the base."),
    "modules_to_save_unsupported": Refusal(
        422, "Whole modules other than embed_tokens, lm_head and norms, or ones not configured."
    ),
    "modules_to_save_not_allowed": Refusal(
        422, "Whole modules or trained tokens beyond what the plan allows."
    ),
    "trainable_tokens_unsupported": Refusal(
        422, "Trained tokens that are not configured, or of a module that is trained otherwise too."
    ),
    "layer_replication_unsupported": Refusal(422, "layer_replication is set."),
    "fan_in_fan_out_mismatch": Refusal(
        422, "fan_in_fan_out is set, but the base has Linear layers."
    ),
    "pattern_unsupported": Refusal(422, "A pattern is too long, or RE2 cannot express it."),
    "target_unknown": Refusal(422, "A target or a tensor names a module that the base lacks."),
    "target_unsupported": Refusal(422, "A target that PEFT cannot adapt, such as a norm."),
    "vocab_resized_unsupported": Refusal(422, "The vocabulary was resized while training."),
    "config_key_forbidden": Refusal(
        422, "A field that names code to import (megatron, auto_mapping)."
    ),
    "config_unknown_key": Refusal(422, "A field that Tenfold does not know, with a value set."),
    "base_model_mismatch": Refusal(
        422, "It was trained on another base, by its name or by its copy of the embedding."
    ),
    "format_mlx_unsupported": Refusal(
        415, "An MLX adapter that leaves open what it computes, or half of one."
    ),
    "tensor_pair_incomplete": Refusal(422, "A lora_A without its lora_B, or the reverse."),
    "rank_mismatch": Refusal(422, "The rank of A, of B and of the configuration differ."),
    "shape_mismatch": Refusal(422, "A tensor's shape does not fit the base."),
    "layer_out_of_range": Refusal(422, "A layer that the base does not have."),
    "multiple_adapters": Refusal(422, "The file holds several adapters."),
    "full_model_not_adapter": Refusal(422, "The file is a whole model, not an adapter."),
    "tensor_unexpected": Refusal(422, "A tensor that is no part of the configured adapter."),
    "tensor_duplicate": Refusal(
        422, "Two tensors stand for the same matrix, or a tied pair holds two sets of numbers."
    ),
    "tensor_missing": Refusal(422, "Tensors of a configured target are missing (cut-off save?)."),
    "chat_template_invalid": Refusal(
        422, "Its chat_template.jinja does not render a small conversation within the limits."
    ),
    "eval_invalid": Refusal(422, "A line of its eval.jsonl is no golden prompt."),
    "validation_limits_exceeded": Refusal(
        422, "Checking it took more time or memory than is allowed."
    ),
    "canary_nonfinite": Refusal(
        422, "With it the model gives NaN or infinity on the golden prompts."
    ),
}

# A warning refuses where nothing else than a faultless adapter is wanted; in this order, after all
# of the above, and with this status.
STRICT_STATUS = 422
WARNINGS: dict[str, str] = {
    "base_model_unverified": "The base model's name is unknown here; only shapes were compared.",
    "trained_on_quantized_base": "It was trained on a quantised copy of a base.",
    "keys_remapped": "Tensor names carried a wrapper's prefix, which was removed.",
    "projections_split": "Fused projections were taken apart: q, k, v; or gate, up.",
    "init_check_conversion": "It may come from an initialisation that changes the base.",
    "scaling_unusual": "lora_alpha is zero or negative for some module.",
    "no_effect": "Every lora_B is zero: the adapter changes nothing.",
    "chat_template_without_system": "Its chat_template.jinja says that it takes no system message.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a validation report. `param` is the config field or the tensor it is about."""

    code: str
    severity: Severity
    message: str
    file: str | None = None
    param: str | None = None
    expected: str | None = None
    actual: str | None = None
    hint: str | None = None


class Findings:
    """Collects findings in the order they are made; long runs of one code are cut and counted."""

    def __init__(self, file: str | None = None) -> None:
        self._found: list[Finding] = []
        self._counts: Counter[tuple[str, Severity]] = Counter()
        self._file = file

    def refuse(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        expected: object = None,
        actual: object = None,
        hint: str | None = None,
    ) -> None:
        """Report an error. `expected` and `actual` are shown as text."""
        assert code in REFUSALS, code
        if self._count(code, "error"):
            shown = _text(expected), _text(actual)
            self._found.append(
                Finding(code, "error", clean(message), self._file, _text(param), *shown, hint)
            )

    def refuse_all(self, code: str, names: Sequence[str], what: str) -> None:
        """Report one error for many names: how many there are, and the first few."""
        if names:
            shown = ", ".join(clean(name, 120) for name in names[:_NUM_EXAMPLES])
            more = ", ..." if len(names) > _NUM_EXAMPLES else ""
            self.refuse(code, f"{what} ({len(names)}): {shown}{more}", param=names[0])

    def warn(self, code: str, message: str, *, param: str | None = None) -> None:
        """Report something worth knowing that is no reason to refuse."""
        assert code in WARNINGS, code
        if self._count(code, "warning"):
            self._found.append(Finding(code, "warning", clean(message), self._file, _text(param)))

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self._found)

    def all(self) -> tuple[Finding, ...]:
        """Everything found, with one closing line for each code that was cut short."""
        cut = [
            Finding(code, severity, f"... and {count - MAX_FINDINGS_PER_CODE} more", self._file)
            for (code, severity), count in self._counts.items()
            if count > MAX_FINDINGS_PER_CODE
        ]
        return (*self._found, *cut)

    def _count(self, code: str, severity: Severity) -> bool:
        """Count one more; false where the list of this code is already long enough."""
        self._counts[code, severity] += 1
        return self._counts[code, severity] <= MAX_FINDINGS_PER_CODE


def strictly(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The same findings, each of them a reason to refuse."""
    return tuple(replace(finding, severity="error") for finding in findings)


def clean(text: str, max_chars: int = _MAX_TEXT_CHARS) -> str:
    """A tenant's text made safe to store and show: encodable, printable, of bounded length."""
    text = text[: max_chars + 1].encode("utf-8", "backslashreplace").decode()
    shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    return shown if len(shown) <= max_chars else shown[:max_chars] + "..."


def _text(value: object) -> str | None:
    return None if value is None else clean(str(value))


class ManifestError(Exception):
    """An adapter is refused. `findings` lists every reason and every warning.

    `code` is the first failing code in table order and `status` its HTTP status.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        failed = {finding.code for finding in self.findings if finding.severity == "error"}
        self.code = next(code for code in (*REFUSALS, *WARNINGS) if code in failed)
        known = REFUSALS.get(self.code)
        self.status = STRICT_STATUS if known is None else known.status
        first = next(finding for finding in self.findings if finding.code == self.code)
        self.message = first.message
        super().__init__(f"{self.code}: {self.message}")
