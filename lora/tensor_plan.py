"""The tensors of a file as pairs (A, B) on modules of the base: the truth of what is adapted.

Knows nothing of the configuration. Invariant: every tensor of the file is either at exactly one
place of the base, with a shape that fits there, or reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lora.base_spec import BaseSpec
from lora.findings import Findings
from lora.limits import ManifestLimits
from lora.module_path import EMBEDDINGS
from lora.safetensors_header import TensorSpan
from lora.sites import EMBED_TOKENS, FUSED, LM_HEAD, NO_LAYER, ModuleKey, module_features
from lora.tensor_names import NameKind, parse_name
from lora.tensor_places import Named, Places, place_tensors

DTYPES = frozenset({"F32", "F16", "BF16"})

_PAIRED = frozenset({NameKind.LORA_A, NameKind.LORA_B})
_SERVED = _PAIRED | {
    NameKind.LORA_BIAS,
    NameKind.MAGNITUDE,
    NameKind.BIAS,
    NameKind.ADAPTED_BIAS,
    NameKind.TOKENS,
    NameKind.WHOLE,
    NameKind.BASE_COPY,
}


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
    places: Places

    @property
    def fused(self) -> frozenset[str]:
        """The fused projections that the trained model had in place of the base's own."""
        return frozenset(module for _, module in self.touched if module in FUSED)

    def of_kind(self, kind: NameKind) -> dict[ModuleKey, TensorSpan]:
        """The tensors of one kind, in no order."""
        return {key: tensors[kind] for key, tensors in self.places.items() if kind in tensors}


def plan_tensors(
    spans: Iterable[TensorSpan], base: BaseSpec, limits: ManifestLimits, findings: Findings
) -> TensorPlan:
    """Pair the tensors up, and report every one that cannot be accounted for."""
    by_kind: dict[NameKind, list[Named]] = defaultdict(list)
    for span in spans:
        name = parse_name(span.name)
        by_kind[name.kind].append((span, name))
    served = [named for kind in sorted(_SERVED) for named in by_kind.get(kind, [])]
    if not _refuse_other_formats(by_kind, findings):
        refuse_values([span for named in by_kind.values() for span, _ in named], findings)
        _refuse_extras(by_kind, findings)
        if by_kind.get(NameKind.BASE_WEIGHT):
            served = [named for named in served if named[1].kind is not NameKind.WHOLE]
    else:
        served = [named for named in served if named[1].kind in _PAIRED]
    prefix, places = place_tensors(served, base, findings)
    fitting = _refuse_misshapen(places, base, findings)
    return TensorPlan(
        prefix=prefix,
        touched=frozenset(key for key, tensors in places.items() if _PAIRED & tensors.keys()),
        pairs=_pair(places, fitting, limits, findings),
        places=fitting,
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
    marks = _SERVED - {NameKind.WHOLE, NameKind.BIAS} | {NameKind.VARIANT}
    if by_kind.get(NameKind.BASE_WEIGHT) and not any(by_kind.get(kind) for kind in marks):
        found = _names(by_kind[NameKind.BASE_WEIGHT])
        findings.refuse_all("full_model_not_adapter", found, "weights of a whole model")
        return True
    return False


def refuse_values(spans: Iterable[TensorSpan], findings: Findings) -> None:
    """Report types that are not served, and tensors without elements."""
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
    (NameKind.SAVED_MODULE, "modules_to_save_unsupported", "whole modules that are not served"),
    (NameKind.OTHER, "tensor_unexpected", "tensors that belong to no LoRA matrix"),
)


def _refuse_extras(by_kind: Mapping[NameKind, list[Named]], findings: Findings) -> None:
    for kind, code, what in _EXTRAS:
        findings.refuse_all(code, _names(by_kind.get(kind, [])), what)
    if whole := by_kind.get(NameKind.BASE_WEIGHT):
        # A base model's own weights lie beside the adapter: nothing says that they were trained.
        beside = by_kind.get(NameKind.WHOLE, [])
        findings.refuse_all("tensor_unexpected", _names([*whole, *beside]), "weights of the base")


def _refuse_misshapen(places: Places, base: BaseSpec, findings: Findings) -> Places:
    """What has the shape that the base asks for."""
    fitting: dict[ModuleKey, dict[NameKind, TensorSpan]] = {}
    for key, tensors in places.items():
        expected = _shapes(key, base)
        fitting[key] = {
            kind: span
            for kind, span in tensors.items()
            if _fits(key, span, expected[kind], base, findings)
        }
    return fitting


def _shapes(key: ModuleKey, base: BaseSpec) -> dict[NameKind, tuple[int | str, ...]]:
    """The shape of each kind of tensor at a module; a text where any size will do."""
    modules = module_features(base)
    if key == EMBED_TOKENS:
        num_in, num_out = base.vocab_size, base.hidden_size
    elif key == LM_HEAD:
        num_in, num_out = base.hidden_size, base.vocab_size
    else:
        num_in, num_out = modules.get(key[1], (base.hidden_size, base.hidden_size))
    whole = (base.vocab_size, base.hidden_size) if key[1] in EMBEDDINGS else (base.hidden_size,)
    shapes: dict[NameKind, tuple[int | str, ...]] = {
        NameKind.LORA_A: ("rank", num_in),
        NameKind.LORA_B: (num_out, "rank"),
        NameKind.TOKENS: ("tokens", base.hidden_size),
        NameKind.WHOLE: whole,
        NameKind.BASE_COPY: whole,
    }
    vectors = (NameKind.LORA_BIAS, NameKind.MAGNITUDE, NameKind.BIAS, NameKind.ADAPTED_BIAS)
    return shapes | dict.fromkeys(vectors, (num_out,))


def _fits(
    key: ModuleKey,
    span: TensorSpan,
    expected: tuple[int | str, ...],
    base: BaseSpec,
    findings: Findings,
) -> bool:
    same_dims = len(span.shape) == len(expected)
    wrong = [
        want
        for want, size in zip(expected, span.shape, strict=False)
        if isinstance(want, int) and want != size
    ]
    if same_dims and not wrong:
        return True
    is_resized = same_dims and key[0] == NO_LAYER and wrong == [base.vocab_size]
    findings.refuse(
        "vocab_resized_unsupported" if is_resized else "shape_mismatch",
        f"rows that are not the base's {base.vocab_size}"
        if is_resized
        else "the shape does not fit the base",
        param=span.name,
        expected=f"[{', '.join(map(str, expected))}]",
        actual=list(span.shape),
    )
    return False


def _pair(
    places: Places, fitting: Places, limits: ManifestLimits, findings: Findings
) -> dict[ModuleKey, TensorPair]:
    alone = [
        span.name
        for tensors in places.values()
        if len(_PAIRED & tensors.keys()) == 1
        for kind, span in tensors.items()
        if kind in _PAIRED
    ]
    findings.refuse_all("tensor_pair_incomplete", alone, "one side of a pair is missing")
    pairs: dict[ModuleKey, TensorPair] = {}
    for key, tensors in fitting.items():
        if tensors.keys() >= _PAIRED:
            pairs[key] = TensorPair(tensors[NameKind.LORA_A], tensors[NameKind.LORA_B])
            _check_rank(pairs[key], limits, findings)
    return pairs


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
