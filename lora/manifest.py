"""An adapter as the rest of Tenfold sees it: which modules, at which rank and scale, where.

Torch-free, and used alike by the upload route and by the engine's loader, so that what one
accepts the other serves. Invariant: a manifest accounts for every tensor of the file and every
field of the configuration; anything else is a ManifestError that lists all findings.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from lora.base_check import check_base
from lora.base_spec import MODULES, BaseSpec
from lora.findings import Finding, Findings, ManifestError
from lora.limits import DEFAULT_LIMITS, ManifestLimits
from lora.lora_module import LoraModule
from lora.mlx_config import MlxConfig
from lora.mlx_tensors import read_mlx_modules
from lora.overrides import BaseCopy, Override, read_overrides, shown
from lora.peft_config import PeftConfig, read_config
from lora.safetensors_header import TensorSpan, read_header
from lora.sites import EMBED, FUSED, HEAD, NO_LAYER, ModuleKey
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from lora.targets import Targets, read_targets
from lora.tensor_names import NameKind
from lora.tensor_plan import TensorPair, TensorPlan, plan_tensors, refuse_values
from lora.tying import Tie, TiedPair, read_tie, tied_pairs

__all__ = [
    "DEFAULT_LIMITS",
    "AdapterManifest",
    "BaseCopy",
    "Finding",
    "LoraModule",
    "ManifestError",
    "ManifestLimits",
    "Override",
    "TensorSpan",
    "read_manifest",
]


@dataclass(frozen=True, slots=True)
class AdapterManifest:
    """A whole adapter; `modules` are sorted by (layer, canonical module order), none twice.

    `copies` must hold what the base has; they change nothing and are not served. `tied` must hold
    the same numbers twice.
    """

    modules: tuple[LoraModule, ...]
    overrides: tuple[Override, ...]
    copies: tuple[BaseCopy, ...]
    tied: tuple[TiedPair, ...]
    warnings: tuple[Finding, ...]
    base_name: str | None
    num_params: int
    max_rank: int

    @property
    def spans(self) -> tuple[TensorSpan, ...]:
        """Every tensor that is served, each once."""
        spans = [span for module in self.modules for span in module.spans]
        spans += [override.span for override in self.overrides]
        return tuple({span.name: span for span in spans}.values())


def read_manifest(
    config_bytes: bytes,
    weights: Path,
    base: BaseSpec,
    *,
    known_bases: Collection[str] = (),
    limits: ManifestLimits = DEFAULT_LIMITS,
) -> AdapterManifest:
    """Check an adapter's configuration and its file's header against the base.

    `known_bases` are the names of all bases that the registry knows, by which an adapter of
    another base of the same shape is told. Tensors' values are not read (`lora.values`).

    Raises:
        ManifestError: the adapter is refused; the error lists every finding.
        OSError: `weights` cannot be read.
    """
    of_config, of_weights = Findings(CONFIG_FILE), Findings(WEIGHTS_FILE)
    config = read_config(config_bytes, limits, of_config)
    if config is not None:
        check_base(config.base_name, base, known_bases, of_config)
    spans = read_header(weights, limits, of_weights)
    modules: tuple[LoraModule, ...] = ()
    overrides: tuple[Override, ...] = ()
    copies: tuple[BaseCopy, ...] = ()
    tied: tuple[TiedPair, ...] = ()
    if isinstance(config, MlxConfig):
        if spans is not None:
            refuse_values(spans, of_weights)
            modules = read_mlx_modules(config, spans, base, of_weights)
    else:
        plan = None if spans is None else plan_tensors(spans, base, limits, of_weights)
        if config is not None:
            tie = read_tie(config, base, limits)
            modules = _read_modules(config, plan, base, tie, limits, of_config, of_weights)
            if plan is not None:
                overrides, copies = read_overrides(
                    config, plan, base, tie, limits, of_config, of_weights
                )
            whole = ((each.key, each.span) for each in overrides if each.what == "weight")
            tied = tied_pairs(tie, whole, modules)
    findings = (*of_config.all(), *of_weights.all())
    if config is None or of_config.has_errors or of_weights.has_errors:
        raise ManifestError(findings)
    manifest = AdapterManifest(
        modules=tuple(sorted(modules, key=lambda each: _canonical((each.layer, each.module)))),
        overrides=overrides,
        copies=copies,
        tied=tied,
        warnings=findings,
        base_name=config.base_name,
        num_params=0,
        max_rank=max(each.rank for each in modules),
    )
    return replace(manifest, num_params=sum(span.num_elements for span in manifest.spans))


def _read_modules(
    config: PeftConfig,
    plan: TensorPlan | None,
    base: BaseSpec,
    tie: Tie,
    limits: ManifestLimits,
    of_config: Findings,
    of_weights: Findings,
) -> tuple[LoraModule, ...]:
    """The adapted modules of PEFT's; without a plan only the configuration is checked."""
    # NOTE: targets are matched against the names of the trained model, which the file tells.
    prefix, fused = ("model.", frozenset()) if plan is None else (plan.prefix, plan.fused)
    targets = read_targets(config, base, prefix, fused, tie, limits, of_config)
    if plan is None:
        return ()
    if fused:
        of_weights.warn("projections_split", f"{', '.join(sorted(fused))}: taken apart in order")
    if not plan.touched and not of_weights.has_errors:
        of_weights.refuse("adapter_empty", "the file holds no LoRA matrices")
    if targets is None:
        return ()
    _check_targets(targets, plan, of_weights)
    return _join(config, targets, plan, limits, of_weights)


def _check_targets(targets: Targets, plan: TensorPlan, findings: Findings) -> None:
    """The tensors are the truth; a configuration that says otherwise tells of a broken save."""
    findings.refuse_all(
        "tensor_unexpected",
        _shown(plan.touched - targets.ranks.keys()),
        "parts of projections that the file has fused too",
    )
    findings.refuse_all(
        "tensor_unexpected",
        _shown(plan.touched - targets.configured),
        "modules that have tensors but are not configured as targets",
    )
    findings.refuse_all(
        "tensor_missing",
        _shown(targets.configured - plan.touched),
        "modules that are configured as targets but have no tensors",
    )


def _join(
    config: PeftConfig,
    targets: Targets,
    plan: TensorPlan,
    limits: ManifestLimits,
    findings: Findings,
) -> tuple[LoraModule, ...]:
    """Give each pair its scale, after checking its rank against the configured one."""
    magnitudes = _take_vectors(config.use_dora, NameKind.MAGNITUDE, "use_dora", plan, findings)
    biases = _take_vectors(config.lora_bias, NameKind.LORA_BIAS, "lora_bias", plan, findings)
    modules: list[LoraModule] = []
    for key, pair in sorted(plan.pairs.items(), key=lambda item: _canonical(item[0])):
        if key not in targets.ranks:
            continue
        if pair.rank != targets.ranks[key]:
            findings.refuse(
                "rank_mismatch",
                "the configuration gives another rank",
                param=pair.a.name,
                expected=targets.ranks[key],
                actual=pair.rank,
            )
            continue
        scale = _scale(targets.alphas[key], pair, config.use_rslora)
        if not abs(scale) <= limits.max_scale:
            findings.refuse(
                "scaling_invalid",
                f"|alpha / r| exceeds {limits.max_scale:g}",
                param=pair.a.name,
                actual=scale,
            )
        modules.append(
            LoraModule(*key, pair.rank, scale, pair.a, pair.b, magnitudes.get(key), biases.get(key))
        )
    if any(module.scale <= 0 for module in modules):
        findings.warn("scaling_unusual", "alpha is zero or negative", param="lora_alpha")
    return tuple(modules)


def _take_vectors(
    wanted: bool, kind: NameKind, field: str, plan: TensorPlan, findings: Findings
) -> dict[ModuleKey, TensorSpan]:
    """One vector for every adapted module, or none at all, as the configuration says."""
    found = plan.of_kind(kind)
    expected = plan.touched if wanted else frozenset()
    findings.refuse_all(
        "tensor_missing",
        _shown(expected - found.keys()),
        f"adapted modules without the vector that {field} saves",
    )
    findings.refuse_all(
        "tensor_unexpected",
        [span.name for key, span in found.items() if key not in expected],
        f"vectors that only {field} explains",
    )
    return found


def _scale(alpha: int | float, pair: TensorPair, use_rslora: bool) -> float:
    """alpha / r, or alpha / sqrt(r) for rsLoRA, with the module's own r."""
    return alpha / math.sqrt(pair.rank) if use_rslora else alpha / pair.rank


_ORDER = (EMBED, *MODULES, *FUSED, HEAD)


def _canonical(key: ModuleKey) -> tuple[int, int]:
    """The embedding first, then layer by layer, the head last."""
    layer, module = key
    after_all = layer == NO_LAYER and module == HEAD
    return (1 << 30 if after_all else layer), _ORDER.index(module)


def _shown(keys: Collection[ModuleKey]) -> list[str]:
    return [shown(key) for key in sorted(keys, key=_canonical)]
