"""What an adapter has instead of the base's own: whole modules, biases, rows of embeddings.

Joins the configuration with the tensors that are no low-rank matrix. Knows nothing of values.
Invariant: each such tensor is accounted for by a field of the configuration, or is a copy of the
base's that must equal it; and each that a field asks for is there.

Source: what PEFT's `_set_trainable` wraps and `get_peft_model_state_dict` saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lora.base_spec import BaseSpec
from lora.findings import Findings
from lora.limits import ManifestLimits
from lora.module_path import EMBEDDINGS
from lora.peft_config import PeftConfig
from lora.safetensors_header import TensorSpan
from lora.sites import (
    EMBED_TOKENS,
    FUSED,
    LAYER_NORMS,
    LAYER_PARTS,
    LM_HEAD,
    NORM,
    ModuleKey,
)
from lora.tensor_names import NameKind
from lora.tensor_plan import TensorPlan
from lora.tying import Tie

# Modules of the base that have no weight that could be served alone.
_PARTS = (*LAYER_PARTS, *FUSED)


@dataclass(frozen=True, slots=True)
class Override:
    """What stands for the base's tensor at `key`.

    "weight": all of it; "bias": its bias; "rows": the rows `token_ids` of it, in that order.
    """

    key: ModuleKey
    what: Literal["weight", "bias", "rows"]
    span: TensorSpan
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BaseCopy:
    """A tensor of the file that must hold what the base has at `key`."""

    key: ModuleKey
    span: TensorSpan


def read_overrides(
    config: PeftConfig,
    plan: TensorPlan,
    base: BaseSpec,
    tie: Tie,
    limits: ManifestLimits,
    of_config: Findings,
    findings: Findings,
) -> tuple[tuple[Override, ...], tuple[BaseCopy, ...]]:
    """The overrides and the copies, in order of their modules."""
    wanted = _modules_to_save(config, plan.prefix, base, of_config)
    if tie is Tie.WEIGHT:
        wanted |= {EMBED_TOKENS, LM_HEAD}
    of_config.refuse_all(
        "modules_to_save_unsupported",
        [shown(key) for key in sorted(wanted & plan.touched)],
        "modules that are saved whole and adapted",
    )
    whole, copies = _take_whole(wanted, plan, findings)
    rows = _take_rows(config, plan, base, wanted, of_config, findings)
    found = [*whole, *rows]
    _check_bytes(found, limits, findings)
    found += _take_biases(config, plan, base, findings)
    return tuple(sorted(found, key=_order)), tuple(copies)


def _modules_to_save(
    config: PeftConfig, prefix: str, base: BaseSpec, findings: Findings
) -> set[ModuleKey]:
    """The modules that `modules_to_save` names; PEFT compares the ends of paths, as text."""
    served = {f"{prefix}embed_tokens": EMBED_TOKENS, "lm_head": LM_HEAD, f"{prefix}norm": NORM}
    others = [prefix.rstrip("."), f"{prefix}layers", f"{prefix}rotary_emb"]
    for layer in range(base.num_layers):
        path = f"{prefix}layers.{layer}"
        served |= {f"{path}.{name}": (layer, name) for name in LAYER_NORMS}
        others += [path, *(f"{path}.{name}" for name in (*_PARTS, *base.linear_modules()))]
    names = config.whole.modules_to_save
    wrong = [name for name in names if any(path.endswith(name) for path in others)]
    wrong += [name for name in names if not any(path.endswith(name) for path in served)]
    findings.refuse_all(
        "modules_to_save_unsupported",
        list(dict.fromkeys(wrong)),
        "only embed_tokens, lm_head and norms are served whole",
    )
    return {key for path, key in served.items() if path.endswith(names)}


def _take_whole(
    wanted: set[ModuleKey], plan: TensorPlan, findings: Findings
) -> tuple[list[Override], list[BaseCopy]]:
    """PEFT also saves embeddings that were not trained: copies of the base's."""
    found = plan.of_kind(NameKind.WHOLE)
    _report_missing(wanted - found.keys(), "modules_to_save without their weight", findings)
    extra = {key: span for key, span in found.items() if key not in wanted}
    findings.refuse_all(
        "modules_to_save_unsupported",
        [span.name for key, span in extra.items() if key[1] not in EMBEDDINGS],
        "whole modules that modules_to_save does not name",
    )
    copies = plan.of_kind(NameKind.BASE_COPY)
    findings.refuse_all(
        "tensor_unexpected",
        [span.name for key, span in copies.items() if key not in plan.touched],
        "copies of modules that the adapter leaves alone",
    )
    copies |= {key: span for key, span in extra.items() if key[1] in EMBEDDINGS}
    overrides = [Override(key, "weight", found[key]) for key in wanted & found.keys()]
    return overrides, [BaseCopy(key, copies[key]) for key in sorted(copies)]


def _take_rows(
    config: PeftConfig,
    plan: TensorPlan,
    base: BaseSpec,
    whole: set[ModuleKey],
    of_config: Findings,
    findings: Findings,
) -> list[Override]:
    """Trained tokens. On a tied base the head shares the embedding's rows, which are stored once,
    unless the configuration gives the head tokens of its own."""
    wanted = _token_ids(config, plan.prefix, base, of_config)
    is_shared = (
        base.tie_word_embeddings
        and EMBED_TOKENS in wanted
        and wanted.get(LM_HEAD, wanted[EMBED_TOKENS]) == wanted[EMBED_TOKENS]
    )
    if config.whole.keeps_tied and base.tie_word_embeddings and len(wanted) == 2 and not is_shared:
        of_config.refuse(
            "trainable_tokens_unsupported",
            "a head that is tied to the embedding has no tokens of its own",
            param="ensure_weight_tying",
        )
    stored = {key: ids for key, ids in wanted.items() if not (is_shared and key == LM_HEAD)}
    found = plan.of_kind(NameKind.TOKENS)
    _report_missing(stored.keys() - found.keys(), "trained tokens without rows", findings)
    findings.refuse_all(
        "trainable_tokens_unsupported",
        [span.name for key, span in found.items() if key not in stored],
        "rows of tokens that trainable_token_indices does not name",
    )
    rows = []
    for key in stored.keys() & found.keys():
        if found[key].shape[0] != len(stored[key]):
            findings.refuse(
                "shape_mismatch",
                "not one row for each trained token",
                param=found[key].name,
                expected=len(stored[key]),
                actual=found[key].shape[0],
            )
        rows.append(Override(key, "rows", found[key], stored[key]))
        if is_shared:
            rows.append(Override(LM_HEAD, "rows", found[key], stored[key]))
    both = {row.key for row in rows} & (whole | plan.touched)
    findings.refuse_all(
        "trainable_tokens_unsupported", sorted(key[1] for key in both), "modules trained twice"
    )
    return rows


def _token_ids(
    config: PeftConfig, prefix: str, base: BaseSpec, findings: Findings
) -> dict[ModuleKey, tuple[int, ...]]:
    wanted: dict[ModuleKey, tuple[int, ...]] = {}
    for name, ids in config.whole.token_indices:
        paths = {f"{prefix}embed_tokens": EMBED_TOKENS, "lm_head": LM_HEAD}
        keys = [key for path, key in paths.items() if name and path.endswith(name)]
        if len(keys) != 1 or keys[0] in wanted:
            findings.refuse_all("trainable_tokens_unsupported", [name], "not one embedding")
            continue
        wanted[keys[0]] = ids
        if max(ids) >= base.vocab_size:
            findings.refuse(
                "vocab_resized_unsupported",
                f"a trained token beyond the base's {base.vocab_size}",
                param="trainable_token_indices",
                actual=max(ids),
            )
    return wanted


def _take_biases(
    config: PeftConfig, plan: TensorPlan, base: BaseSpec, findings: Findings
) -> list[Override]:
    """`lora_only`: those of the adapted modules; `all`: every bias of the base."""
    biased = {
        (layer, module) for layer in range(base.num_layers) for module in base.biased_modules()
    }
    adapted = biased & plan.touched if config.bias != "none" else set()
    others = biased - plan.touched if config.bias == "all" else set()
    overrides = []
    for kind, wanted in ((NameKind.ADAPTED_BIAS, adapted), (NameKind.BIAS, others)):
        found = plan.of_kind(kind)
        _report_missing(wanted - found.keys(), f"biases that bias={config.bias} saves", findings)
        findings.refuse_all(
            "tensor_unexpected",
            [span.name for key, span in found.items() if key not in wanted],
            f"biases that bias={config.bias} does not save",
        )
        overrides += [Override(key, "bias", found[key]) for key in wanted & found.keys()]
    return overrides


def _check_bytes(overrides: Iterable[Override], limits: ManifestLimits, findings: Findings) -> None:
    """Full overrides cost as much as they hold; whoever serves says how much that may be."""
    spans: Mapping[str, TensorSpan] = {each.span.name: each.span for each in overrides}
    num_bytes = sum(span.end - span.begin for span in spans.values())
    if limits.max_override_bytes is not None and num_bytes > limits.max_override_bytes:
        findings.refuse(
            "modules_to_save_not_allowed",
            f"whole modules and trained tokens hold {num_bytes} bytes",
            expected=limits.max_override_bytes,
            actual=num_bytes,
            hint="train low-rank matrices alone, or ask for a plan that allows it",
        )


def _report_missing(keys: Iterable[ModuleKey], what: str, findings: Findings) -> None:
    names = [shown(key) for key in sorted(keys)]
    findings.refuse_all("tensor_missing", names, what)


def shown(key: ModuleKey) -> str:
    """A module as findings call it."""
    layer, module = key
    return module if layer < 0 else f"layers.{layer}.{module}"


def _order(override: Override) -> tuple[ModuleKey, str]:
    return override.key, override.what
