"""Which module of the base each tensor of a file belongs to, by its name.

Knows nothing of shapes or of the configuration. Invariant: every tensor that is handed in is at
one place or reported. All names carry one and the same wrapper, so that a file that fits only in
part is refused as a whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from lora.base_spec import BaseSpec
from lora.findings import Findings
from lora.module_path import EMBEDDINGS, NORMS
from lora.safetensors_header import TensorSpan
from lora.sites import EMBED_TOKENS, LAYER_NORMS, LM_HEAD, NORM, ModuleKey, module_features
from lora.tensor_names import NameKind, TensorName

Named = tuple[TensorSpan, TensorName]
Places = Mapping[ModuleKey, Mapping[NameKind, TensorSpan]]

_PAIRED = frozenset({NameKind.LORA_A, NameKind.LORA_B})
_BIASES = frozenset({NameKind.BIAS, NameKind.ADAPTED_BIAS})
_OF_EMBEDDINGS = frozenset({NameKind.TOKENS, NameKind.BASE_COPY})

_MISPLACED = {
    "bias_unsupported": "biases of modules that have none in the base",
    "target_unsupported": "LoRA on modules that PEFT cannot adapt so",
    "target_unknown": "tensors of modules that the base does not have",
    "tensor_unexpected": "names that map to no module of the base",
    "layer_out_of_range": "layers that the base does not have",
    "tensor_duplicate": "tensors that stand for the same matrix as another",
}


def place_tensors(named: list[Named], base: BaseSpec, findings: Findings) -> tuple[str, Places]:
    """The wrapper's prefix before `layers.`, and each tensor's module and kind."""
    kept, prefix = _refuse_mixed_wrappers(named, findings)
    _refuse_mixed_adapters(kept, findings)
    if kept and not all(name.is_canonical for _, name in kept):
        findings.warn(
            "keys_remapped",
            "tensor names carry a wrapper's prefix or an adapter's name, which was taken off",
        )
    return prefix, _place(kept, base, findings)


def _refuse_mixed_wrappers(named: list[Named], findings: Findings) -> tuple[list[Named], str]:
    """Keep the tensors under the commonest wrapper; report the others."""
    known = [name for _, name in named if name.module.has_known_prefix]
    wrappers = Counter((name.head, name.module.prefix) for name in known if not name.module.is_head)
    if not wrappers:
        heads = Counter(name.head for name in known)
        if not heads:
            return named, "model."
        wrappers[heads.most_common(1)[0][0], "model."] += 1
    (head, prefix), _ = wrappers.most_common(1)[0]
    kept: list[Named] = []
    stray: list[str] = []
    for span, name in named:
        fits = name.head == head and name.module.fits_beside(prefix)
        if name.module.has_known_prefix and not fits:
            stray.append(span.name)
        else:
            kept.append((span, name))
    findings.refuse_all(
        "tensor_unexpected", stray, "names under another prefix than the file's others"
    )
    return kept, prefix


def _refuse_mixed_adapters(named: list[Named], findings: Findings) -> None:
    """One adapter a file; trainers name it in all pairs or in none."""
    of_pairs = {name.adapter for _, name in named if name.kind in _PAIRED}
    adapters = of_pairs | {name.adapter for _, name in named if name.adapter is not None}
    if len(of_pairs) > 1 or len(adapters - {None}) > 1:
        shown = sorted(adapter or "(none)" for adapter in adapters)
        findings.refuse_all("multiple_adapters", shown, "adapters in one file")


def _place(named: list[Named], base: BaseSpec, findings: Findings) -> Places:
    modules = module_features(base)
    leaves = {module.rpartition(".")[2] for module in modules}
    places: dict[ModuleKey, dict[NameKind, TensorSpan]] = defaultdict(dict)
    refused: dict[str, list[str]] = defaultdict(list)
    for span, name in named:
        code = _misplacement(name, base, modules, leaves)
        if code is not None:
            refused[code].append(span.name)
            continue
        assert name.module.key is not None
        tensors = places[name.module.key]
        if name.kind in tensors:
            refused["tensor_duplicate"].append(span.name)
        tensors.setdefault(name.kind, span)
    for code, names in refused.items():
        findings.refuse_all(code, names, _MISPLACED[code])
    return places


def _misplacement(
    name: TensorName, base: BaseSpec, modules: Iterable[str], leaves: set[str]
) -> str | None:
    """The code under which a tensor has no place in the base, or None."""
    module = name.module
    known_leaves = leaves | EMBEDDINGS | NORMS
    if module.is_of_another_tower or module.leaf not in known_leaves:
        return "target_unknown"
    if not module.has_known_prefix:
        return "tensor_unexpected"
    if module.index and (module.layer is None or module.layer >= base.num_layers):
        return "layer_out_of_range"
    key = module.key
    if key is None or not _exists(key, modules):
        return "tensor_unexpected" if key is None else "target_unknown"
    return _misfit(name.kind, key, base, is_embedding=name.is_embedding)


def _exists(key: ModuleKey, modules: Iterable[str]) -> bool:
    return key in (EMBED_TOKENS, LM_HEAD, NORM) or (
        key[0] >= 0 and (key[1] in modules or key[1] in LAYER_NORMS)
    )


def _misfit(kind: NameKind, key: ModuleKey, base: BaseSpec, *, is_embedding: bool) -> str | None:
    """The code under which the base's module cannot have a tensor of this kind."""
    if kind in _BIASES:
        return None if key[1] in base.biased_modules() else "bias_unsupported"
    if kind in _OF_EMBEDDINGS:
        return None if key[1] in EMBEDDINGS else "tensor_unexpected"
    if kind is NameKind.WHOLE:
        return None
    if key[1] in NORMS:
        return "target_unsupported"
    if kind in _PAIRED and is_embedding != (key == EMBED_TOKENS):
        return "target_unsupported"
    return "target_unsupported" if (kind, key) == (NameKind.LORA_BIAS, EMBED_TOKENS) else None
