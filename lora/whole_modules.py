"""What a configuration trains besides low-rank matrices: whole modules, and rows of embeddings.

Knows nothing of the base. Invariant: names are compared as text and never evaluated; a name that
PEFT would read as a pattern is refused.

Source: PEFT's modules_to_save, trainable_token_indices and ensure_weight_tying.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lora.config_values import is_list_of, shown
from lora.findings import Findings
from lora.limits import ManifestLimits
from lora.sites import EMBED

_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")

TokenIndices = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class WholeModules:
    """`token_indices`: (module's name, its tokens) as the configuration has them, in its order."""

    modules_to_save: tuple[str, ...] = ()
    token_indices: TokenIndices = ()
    keeps_tied: bool = False


def read_whole_modules(
    fields: Mapping[str, object], limits: ManifestLimits, findings: Findings
) -> WholeModules:
    """The fields, typed; what is malformed is reported and left out."""
    keeps_tied = fields.get("ensure_weight_tying")
    if keeps_tied is not None and not isinstance(keeps_tied, bool):
        findings.refuse("config_schema_invalid", "is not a boolean", param="ensure_weight_tying")
    return WholeModules(
        _modules_to_save(fields.get("modules_to_save"), limits, findings),
        _token_indices(fields.get("trainable_token_indices"), findings),
        keeps_tied is True,
    )


def _modules_to_save(value: object, limits: ManifestLimits, findings: Findings) -> tuple[str, ...]:
    if value is None:
        return ()
    if not is_list_of(value, str):
        _malformed(findings, "modules_to_save", "a list of names", value)
        return ()
    odd = [name for name in value if not _NAME.fullmatch(name[: limits.max_pattern_chars + 1])]
    odd += [name for name in value if len(name) > limits.max_pattern_chars]
    if odd or len(value) > limits.max_patterns:
        findings.refuse_all(
            "modules_to_save_unsupported", odd or value, "names of modules_to_save that are none"
        )
        return ()
    return tuple(dict.fromkeys(value))


def _token_indices(value: object, findings: Findings) -> TokenIndices:
    if value is None or value == {}:
        return ()
    named = value if isinstance(value, dict) else {EMBED: value}
    found = []
    for name, indices in named.items():
        if not is_list_of(indices, int) or not indices or min(indices) < 0:
            _malformed(findings, "trainable_token_indices", "a list of token ids", indices)
        elif len(set(indices)) != len(indices):
            _malformed(findings, "trainable_token_indices", "a list without repetitions", indices)
        else:
            found.append((name, tuple(indices)))
    return tuple(found)


def _malformed(findings: Findings, name: str, expected: str, value: object) -> None:
    findings.refuse(
        "config_schema_invalid",
        f"{name} is malformed",
        param=name,
        expected=expected,
        actual=shown(value),
    )
