"""The tensors of a file as pairs (A, B) on modules of the base: the truth of what is adapted.

Knows nothing of the configuration. Invariant: every tensor of the file is either one side of
exactly one pair, with shapes that fit the base, or reported. All names carry one and the same
wrapper, so that a file that fits only in part is refused as a whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lora.base_spec import BaseSpec
from lora.findings import Findings
from lora.limits import ManifestLimits
from lora.safetensors_header import TensorSpan
from lora.targets import ModuleKey
from lora.tensor_names import EMBEDDINGS, NameKind, Side, TensorName, parse_name

DTYPES = frozenset({"F32", "F16", "BF16"})

Named = tuple[TensorSpan, TensorName]


@dataclass(frozen=True, slots=True)
class TensorPair:
    """`a` is [rank, in], `b` is [out, rank]."""

    a: TensorSpan
    b: TensorSpan

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """`prefix` is what the trained model had before `layers.` (PEFT matched against that).

    `touched` holds every module that has at least one side, `pairs` those that are whole.
    """

    prefix: str
    touched: frozenset[ModuleKey]
    pairs: Mapping[ModuleKey, TensorPair]


def plan_tensors(
    spans: Iterable[TensorSpan], base: BaseSpec, limits: ManifestLimits, findings: Findings
) -> TensorPlan:
    """Pair the tensors up, and report every one that cannot be accounted for."""
    by_kind: dict[NameKind, list[Named]] = defaultdict(list)
    for span in spans:
        name = parse_name(span.name)
        by_kind[name.kind].append((span, name))
    if not _refuse_other_formats(by_kind, findings):
        _refuse_values([span for named in by_kind.values() for span, _ in named], findings)
        _refuse_extras(by_kind, base, findings)
    lora = by_kind[NameKind.LORA]
    wrapped = _refuse_mixed_wrappers(lora, findings)
    sides = _place(wrapped, base, findings)
    _warn_remapped([name for _, name in wrapped], findings)
    return TensorPlan(
        prefix=next((name.module.prefix or "" for _, name in wrapped), "model."),
        touched=frozenset(sides),
        pairs=_pair(sides, base, limits, findings),
    )


def _refuse_other_formats(by_kind: Mapping[NameKind, list[Named]], findings: Findings) -> bool:
    """Whether the names are those of another trainer, or of no adapter at all."""
    for kind, code, what in (
        (NameKind.KOHYA, "format_kohya_unsupported", "kohya's tensor names"),
        (NameKind.MLX, "format_mlx_unsupported", "MLX's tensor names"),
    ):
        if found := _names(by_kind.get(kind, [])):
            findings.refuse_all(code, found, what)
            return True
    if by_kind.get(NameKind.BASE_WEIGHT) and not _looks_like_adapter(by_kind):
        found = _names(by_kind[NameKind.BASE_WEIGHT])
        findings.refuse_all("full_model_not_adapter", found, "weights of a whole model")
        return True
    return False


def _looks_like_adapter(by_kind: Mapping[NameKind, list[Named]]) -> bool:
    marks = (NameKind.LORA, NameKind.VARIANT, NameKind.EMBEDDING_LORA, NameKind.TOKENS)
    return any(by_kind.get(kind) for kind in marks)


def _refuse_values(spans: list[TensorSpan], findings: Findings) -> None:
    for span in spans:
        if span.dtype not in DTYPES:
            findings.refuse(
                "dtype_unsupported",
                "only F32, F16 and BF16 are served",
                param=span.name,
                actual=span.dtype,
            )
        if 0 in span.shape:
            findings.refuse("tensor_empty", "a tensor without elements", param=span.name)


_EXTRAS = (
    (NameKind.INVALID, "tensor_name_invalid", "names that are too long or hold odd characters"),
    (NameKind.VARIANT, "variant_unsupported", "tensors of a LoRA variant that is not served"),
    (NameKind.BIAS, "bias_unsupported", "trained biases"),
    (NameKind.TOKENS, "trainable_tokens_unsupported", "trained token embeddings"),
    (NameKind.EMBEDDING_LORA, "target_unsupported", "LoRA on embeddings"),
    (NameKind.OTHER, "tensor_unexpected", "tensors that belong to no LoRA matrix"),
)


def _refuse_extras(
    by_kind: Mapping[NameKind, list[Named]], base: BaseSpec, findings: Findings
) -> None:
    for kind, code, what in _EXTRAS:
        findings.refuse_all(code, _names(by_kind.get(kind, [])), what)
    whole = by_kind.get(NameKind.BASE_WEIGHT, [])
    embeddings = by_kind.get(NameKind.EMBEDDING, [])
    saved = by_kind.get(NameKind.SAVED_MODULE, [])
    if whole:
        # A base model's own weights lie beside the adapter: nothing says that they were trained.
        findings.refuse_all(
            "tensor_unexpected", _names([*whole, *embeddings, *saved]), "weights of the base"
        )
        return
    copies = [named for named in embeddings if named[0].shape[:1] == (base.vocab_size,)]
    resized = [named for named in embeddings if named[0].shape[:1] != (base.vocab_size,)]
    findings.refuse_all(
        "vocab_resized_unsupported",
        _names(resized),
        f"embeddings whose rows are not the base's {base.vocab_size}",
    )
    findings.refuse_all(
        "modules_to_save_unsupported", _names([*copies, *saved]), "whole modules in the file"
    )


def _refuse_mixed_wrappers(lora: list[Named], findings: Findings) -> list[Named]:
    """Keep the tensors under the commonest wrapper and adapter name; report the others."""
    adapters = Counter(name.adapter for _, name in lora)
    if len(adapters) > 1:
        shown = sorted(adapter or "(none)" for adapter in adapters)
        findings.refuse_all("multiple_adapters", shown, "adapters in one file")
    wrappers = Counter(_wrapper(name) for _, name in lora if name.module.has_known_prefix)
    if not wrappers:
        return lora
    commonest = wrappers.most_common(1)[0][0]
    kept: list[Named] = []
    stray: list[Named] = []
    for named in lora:
        name = named[1]
        is_stray = name.module.has_known_prefix and _wrapper(name) != commonest
        (stray if is_stray else kept).append(named)
    findings.refuse_all(
        "tensor_unexpected", _names(stray), "names under another prefix than the file's others"
    )
    return kept


def _wrapper(name: TensorName) -> tuple[str, str | None]:
    return name.head, name.module.prefix


def _place(
    lora: list[Named], base: BaseSpec, findings: Findings
) -> dict[ModuleKey, dict[Side, TensorSpan]]:
    """Each LoRA tensor's module in the base; those that have none are reported."""
    modules = base.linear_modules()
    leaves = {module.rpartition(".")[2] for module in modules}
    sides: dict[ModuleKey, dict[Side, TensorSpan]] = defaultdict(dict)
    refused: dict[str, list[str]] = defaultdict(list)
    for span, name in lora:
        code = _misplacement(name, base, modules, leaves)
        if code is not None:
            refused[code].append(span.name)
            continue
        assert name.module.layer is not None
        sides_of_module = sides[name.module.layer, name.module.module]
        if name.side in sides_of_module:
            refused["tensor_duplicate"].append(span.name)
        sides_of_module.setdefault(name.side, span)
    for code, names in refused.items():
        findings.refuse_all(code, names, _MISPLACED[code])
    return sides


_MISPLACED = {
    "target_unsupported": "LoRA on embed_tokens or lm_head",
    "target_unknown": "LoRA on modules that the base does not have",
    "tensor_unexpected": "names that map to no module of the base",
    "layer_out_of_range": "layers that the base does not have",
    "tensor_duplicate": "tensors that stand for the same matrix as another",
}


def _misplacement(
    name: TensorName, base: BaseSpec, modules: Iterable[str], leaves: set[str]
) -> str | None:
    """The code under which a LoRA tensor has no place in the base, or None."""
    module = name.module
    if module.leaf in EMBEDDINGS:
        return "target_unsupported"
    if module.is_of_another_tower or module.leaf not in leaves:
        return "target_unknown"
    if not module.has_known_prefix:
        return "tensor_unexpected"
    if module.layer is None or module.layer >= base.num_layers:
        return "layer_out_of_range"
    return None if module.module in modules else "target_unknown"


def _warn_remapped(names: list[TensorName], findings: Findings) -> None:
    if names and not all(name.is_canonical for name in names):
        findings.warn(
            "keys_remapped",
            "tensor names carry a wrapper's prefix or an adapter's name, which was taken off",
        )


def _pair(
    sides: Mapping[ModuleKey, Mapping[Side, TensorSpan]],
    base: BaseSpec,
    limits: ManifestLimits,
    findings: Findings,
) -> dict[ModuleKey, TensorPair]:
    modules = base.linear_modules()
    alone = [span.name for spans in sides.values() if len(spans) == 1 for span in spans.values()]
    findings.refuse_all("tensor_pair_incomplete", alone, "one side of a pair is missing")
    pairs: dict[ModuleKey, TensorPair] = {}
    for key, spans in sides.items():
        in_features, out_features = modules[key[1]]
        fits = [
            _fits(span, 1, in_features, f"[rank, {in_features}]", findings)
            if side == "A"
            else _fits(span, 0, out_features, f"[{out_features}, rank]", findings)
            for side, span in spans.items()
        ]
        if len(spans) == 2 and all(fits):
            pairs[key] = TensorPair(spans["A"], spans["B"])
            _check_rank(pairs[key], limits, findings)
    return pairs


def _fits(span: TensorSpan, axis: int, features: int, expected: str, findings: Findings) -> bool:
    """Whether the tensor is a matrix with the base's `features` on `axis`; reports it if not."""
    fits = len(span.shape) == 2 and span.shape[axis] == features
    if not fits:
        findings.refuse(
            "shape_mismatch",
            "the shape does not fit the base",
            param=span.name,
            expected=expected,
            actual=list(span.shape),
        )
    return fits


def _check_rank(pair: TensorPair, limits: ManifestLimits, findings: Findings) -> None:
    if pair.b.shape[1] != pair.rank:
        findings.refuse(
            "rank_mismatch",
            "A and B have different ranks",
            param=pair.b.name,
            expected=pair.rank,
            actual=pair.b.shape[1],
        )
    if pair.rank > limits.max_rank:
        findings.refuse(
            "rank_too_large",
            f"rank {pair.rank} exceeds the limit of {limits.max_rank}",
            param=pair.a.name,
        )


def _names(named: Iterable[Named]) -> list[str]:
    return [span.name for span, _ in named]
