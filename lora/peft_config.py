"""adapter_config.json, read strictly: what decides the arithmetic, and a finding for all the rest.

Knows nothing of the base's modules or of tensors. Invariant: every field is either understood,
known to have no bearing on inference, at its default, or refused by name. Nothing that the
document names (a path, a URL, a class) is ever followed, opened or imported.

Source: PEFT's LoraConfig, versions 0.3 to 0.21.
"""

from __future__ import annotations

from dataclasses import dataclass

from lora.config_document import Fields, read_document
from lora.config_fields import CHECKS, NO_BEARING
from lora.config_values import is_empty, is_list_of, shown
from lora.findings import Findings, clean
from lora.limits import ManifestLimits
from lora.mlx_config import MARKS, MlxConfig, read_mlx_config
from lora.whole_modules import WholeModules, read_whole_modules

# What PEFT assumes where the file is silent.
DEFAULT_RANK = 8
DEFAULT_ALPHA = 8

ALL_LINEAR = "all-linear"
DEFAULT_TARGETS = ("q_proj", "v_proj")
"""What PEFT takes null for, with a Llama; it passes over tensors of other modules."""

# The fields that `_is_lora`, `_Reader` and `read_whole_modules` take.
_READ = frozenset(
    {
        "peft_type",
        "base_model_name_or_path",
        "r",
        "lora_alpha",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "bias",
        "use_dora",
        "lora_bias",
        "modules_to_save",
        "trainable_token_indices",
        "ensure_weight_tying",
    }
)


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The fields that decide which modules are adapted, at which rank, with which scale.

    `target_modules` is a regex or a list of names, empty where the file's is. The patterns keep the
    file's order, because the first that matches wins.
    """

    base_name: str | None
    r: int
    lora_alpha: int | float
    use_rslora: bool
    rank_pattern: tuple[tuple[str, int], ...]
    alpha_pattern: tuple[tuple[str, int | float], ...]
    target_modules: str | tuple[str, ...]
    exclude_modules: str | tuple[str, ...] | None
    layers_to_transform: tuple[int, ...] | None
    layers_pattern: tuple[str, ...]
    bias: str
    use_dora: bool
    lora_bias: bool
    whole: WholeModules


def read_config(
    data: bytes, limits: ManifestLimits, findings: Findings
) -> PeftConfig | MlxConfig | None:
    """Parse the file. None where it is not the configuration of a LoRA adapter at all.

    A field that is wrong or not served is reported in `findings`, and PEFT's default stands in for
    it, so that the rest can still be checked.
    """
    fields = read_document(data, limits, findings)
    if fields is None:
        return None
    if MARKS & fields.keys():
        return read_mlx_config(fields, limits, findings)
    if not _is_lora(fields, findings):
        return None
    for name, value in fields.items():
        if name in CHECKS:
            CHECKS[name](value, findings)
        elif name not in _READ | NO_BEARING and not is_empty(value):
            findings.refuse(
                "config_unknown_key",
                f"{clean(name, 120)!r} is set, and what it would change is not known",
                param=name,
            )
    return _Reader(fields, limits, findings).read()


def _is_lora(fields: Fields, findings: Findings) -> bool:
    peft_type = fields.get("peft_type")
    if peft_type != "LORA":
        findings.refuse(
            "peft_type_unsupported",
            "only LoRA adapters are served",
            param="peft_type",
            expected="LORA",
            actual=peft_type,
        )
    return peft_type == "LORA"


class _Reader:
    """Takes the typed fields out of the document, reporting each that is not what it should be."""

    def __init__(self, fields: Fields, limits: ManifestLimits, findings: Findings) -> None:
        self._fields = fields
        self._limits = limits
        self._findings = findings

    def read(self) -> PeftConfig:
        target_modules = self._target_modules()
        layers_to_transform = self._layers_to_transform()
        layers_pattern = self._layers_pattern()
        if isinstance(target_modules, str):
            for name in ("layers_to_transform", "layers_pattern"):
                if self._fields.get(name) is not None:
                    self._malformed(name, "cannot go with a regex in target_modules")
        if layers_pattern and layers_to_transform is None:
            self._malformed("layers_pattern", "needs layers_to_transform")
        use_dora, lora_bias = self._flag("use_dora"), self._flag("lora_bias")
        if use_dora and lora_bias:
            self._findings.refuse(
                "variant_unsupported", "PEFT has no DoRA with lora_bias", param="lora_bias"
            )
        return PeftConfig(
            base_name=self._base_name(),
            r=self._rank("r", self._fields.get("r", DEFAULT_RANK)),
            lora_alpha=self._alpha("lora_alpha", self._fields.get("lora_alpha", DEFAULT_ALPHA)),
            use_rslora=self._flag("use_rslora"),
            rank_pattern=tuple(
                (key, self._rank(f"rank_pattern.{key}", value))
                for key, value in self._pattern("rank_pattern")
            ),
            alpha_pattern=tuple(
                (key, self._alpha(f"alpha_pattern.{key}", value))
                for key, value in self._pattern("alpha_pattern")
            ),
            target_modules=target_modules,
            exclude_modules=self._names_or_regex("exclude_modules"),
            layers_to_transform=layers_to_transform,
            layers_pattern=layers_pattern,
            bias=self._bias(),
            use_dora=use_dora,
            lora_bias=lora_bias,
            whole=read_whole_modules(self._fields, self._limits, self._findings),
        )

    def _base_name(self) -> str | None:
        name = self._fields.get("base_model_name_or_path")
        if name is None or name == "":
            return None
        if not isinstance(name, str):
            self._malformed("base_model_name_or_path", "is not a string")
            return None
        if len(name.encode("utf-8", "replace")) > self._limits.max_base_name_bytes:
            limit = self._limits.max_base_name_bytes
            self._malformed("base_model_name_or_path", f"exceeds {limit} bytes")
            return None
        return clean(name, self._limits.max_base_name_bytes)

    def _rank(self, param: str, value: object) -> int:
        if type(value) is not int or value < 1:
            self._findings.refuse(
                "rank_invalid",
                "a rank is a positive integer",
                param=param,
                actual=shown(value),
            )
            return DEFAULT_RANK
        if value > self._limits.max_rank:
            self._findings.refuse(
                "rank_too_large",
                f"rank {value} exceeds the limit of {self._limits.max_rank}",
                param=param,
            )
        return value

    def _alpha(self, param: str, value: object) -> int | float:
        if type(value) is int or type(value) is float:
            return value
        self._findings.refuse(
            "scaling_invalid", "alpha is a number", param=param, actual=shown(value)
        )
        return DEFAULT_ALPHA

    def _flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, bool):
            self._malformed(name, "is not a boolean")
        return value is True

    def _bias(self) -> str:
        value = self._fields.get("bias", "none")
        if value not in ("none", "all", "lora_only"):
            self._malformed("bias", "is not one of none, all, lora_only")
            return "none"
        return str(value)

    def _pattern(self, name: str) -> list[tuple[str, object]]:
        value = self._fields.get(name, {})
        if not isinstance(value, dict):
            self._malformed(name, "is not an object")
            return []
        if len(value) > self._limits.max_patterns:
            self._findings.refuse(
                "pattern_unsupported",
                f"{len(value)} patterns exceed the limit of {self._limits.max_patterns}",
                param=name,
            )
            return []
        return list(value.items())

    def _target_modules(self) -> str | tuple[str, ...]:
        if self._fields.get("target_modules") is None:
            return DEFAULT_TARGETS
        return self._names_or_regex("target_modules") or ()

    def _names_or_regex(self, name: str) -> str | tuple[str, ...] | None:
        value = self._fields.get(name)
        if value is None or isinstance(value, str):
            return value or None
        return self._names(name, value) or None

    def _names(self, name: str, value: object) -> tuple[str, ...]:
        if not is_list_of(value, str):
            self._malformed(name, "is neither a list of strings nor a string")
            return ()
        limit = self._limits.max_pattern_chars
        for entry in value:
            if len(entry) > limit:
                self._findings.refuse(
                    "pattern_unsupported", f"a name exceeds {limit} characters", param=name
                )
        return tuple(dict.fromkeys(value))

    def _layers_to_transform(self) -> tuple[int, ...] | None:
        # NOTE: to PEFT false is layer 0, and the others that are empty are no layers at all.
        value = self._fields.get("layers_to_transform")
        if value is None or value == []:
            return None
        layers = value if isinstance(value, list) else [value]
        if not is_list_of(layers, int):
            self._malformed("layers_to_transform", "is not an integer or a list of integers")
            return None
        return tuple(layers)

    def _layers_pattern(self) -> tuple[str, ...]:
        value = self._fields.get("layers_pattern")
        if value is None or value == "":
            return ()
        names = self._names("layers_pattern", [value] if isinstance(value, str) else value)
        if len(names) > self._limits.max_patterns:
            self._findings.refuse(
                "pattern_unsupported", f"{len(names)} patterns", param="layers_pattern"
            )
            return ()
        return names

    def _malformed(self, name: str, what: str) -> None:
        self._findings.refuse("config_schema_invalid", f"{name} {what}", param=name)
