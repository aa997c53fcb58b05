"""The tensors of an MLX adapter as adapted modules: A and B lie transposed, DoRA's m as it is.

Invariant: every tensor of the file is at exactly one linear module of a layer, of the shape that
MLX's trainer gives it there, or the whole file is refused: nothing is guessed.

Source: mlx-lm's `LoRALinear` (`lora_a` [in, rank], `lora_b` [rank, out]) and `DoRALinear`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from lora.base_spec import BaseSpec
from lora.findings import Findings
from lora.lora_module import LoraModule
from lora.mlx_config import MlxConfig
from lora.module_path import module_path
from lora.safetensors_header import TensorSpan
from lora.sites import ModuleKey

_CODE = "format_mlx_unsupported"
_SIDES = ("lora_a", "lora_b", "m")

Sides = Mapping[str, TensorSpan]


def read_mlx_modules(
    config: MlxConfig, spans: Iterable[TensorSpan], base: BaseSpec, findings: Findings
) -> tuple[LoraModule, ...]:
    """The adapted modules, in no order; what does not fit is reported."""
    places = _place(spans, base, findings)
    _check_layers(config, places, base, findings)
    features = base.linear_modules()
    modules = []
    for (layer, module), sides in places.items():
        num_in, num_out = features[module]
        shapes: dict[str, tuple[int, ...]] = {
            "lora_a": (num_in, config.rank),
            "lora_b": (config.rank, num_out),
        }
        if config.use_dora:
            shapes["m"] = (num_out,)
        if sides.keys() != shapes.keys():
            names = [span.name for span in sides.values()]
            findings.refuse_all("tensor_pair_incomplete", names, "not all sides of a module")
            continue
        for side, expected in shapes.items():
            if sides[side].shape != expected:
                findings.refuse(
                    "shape_mismatch",
                    "the shape does not fit the base, or the configured rank",
                    param=sides[side].name,
                    expected=list(expected),
                    actual=list(sides[side].shape),
                )
        modules.append(
            LoraModule(
                layer,
                module,
                config.rank,
                config.scale,
                sides["lora_a"],
                sides["lora_b"],
                magnitude=sides.get("m"),
                is_transposed=True,
            )
        )
    return tuple(modules)


def _place(
    spans: Iterable[TensorSpan], base: BaseSpec, findings: Findings
) -> dict[ModuleKey, dict[str, TensorSpan]]:
    features = base.linear_modules()
    places: dict[ModuleKey, dict[str, TensorSpan]] = defaultdict(dict)
    prefixes = set()
    odd, beyond = [], []
    for span in spans:
        *owner, side = span.name.split(".")
        path = module_path(owner)
        key = path.key
        if side not in _SIDES or not path.has_known_prefix or path.module not in features:
            odd.append(span.name)
        elif key is None or key[0] >= base.num_layers:
            beyond.append(span.name)
        else:
            prefixes.add(path.prefix)
            places[key][side] = span
    findings.refuse_all(_CODE, odd, "tensors that are not MLX's LoRA on a linear of a layer")
    findings.refuse_all("layer_out_of_range", beyond, "layers that the base does not have")
    if len(prefixes) > 1:
        findings.refuse_all("tensor_unexpected", sorted(prefixes), "names under several prefixes")
    return places


def _check_layers(
    config: MlxConfig, places: Mapping[ModuleKey, Sides], base: BaseSpec, findings: Findings
) -> None:
    """The trainer adapts the same modules in each of the last layers."""
    num_layers = config.num_layers if config.num_layers > 0 else base.num_layers
    if num_layers > base.num_layers:
        findings.refuse("layer_out_of_range", "more layers than the base has", param="num_layers")
        return
    modules = {module for _, module in places} if config.keys is None else config.keys
    unknown = sorted(set(modules) - base.linear_modules().keys())
    findings.refuse_all(_CODE, unknown, "keys that are no linear modules of a layer")
    layers = range(base.num_layers - num_layers, base.num_layers)
    expected = {(layer, module) for layer in layers for module in modules}
    if not places and not findings.has_errors:
        findings.refuse("adapter_empty", "the file holds no LoRA matrices")
    elif places and not unknown:
        missing = [f"layers.{layer}.{module}" for layer, module in sorted(expected - places.keys())]
        extra = [f"layers.{layer}.{module}" for layer, module in sorted(places.keys() - expected)]
        findings.refuse_all("tensor_missing", missing, "modules of the last layers without tensors")
        findings.refuse_all("tensor_unexpected", extra, "modules outside the configured ones")
