"""How far modules of a loaded adapter are from a merge into the base's weights, made here anew.

The merge reads the adapter's file itself, in NumPy and float64, by PEFT's formulas; of the loading
code it shares the header's parser and nothing else. Knows nothing of requests. Blocking, and takes
a second or two of a core for a large base: for a loader's thread.

Source of the formulas: LoRA (Hu et al. 2021), DoRA (Liu et al. 2024), and PEFT's `merge`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.messages import ModuleFigure
from kernels.interface import LoraSite
from lora.base_spec import BaseSpec
from lora.base_tensors import BaseTensors
from lora.manifest import AdapterManifest, LoraModule, TensorSpan
from lora.sites import EMBED, FUSED, HEAD, SITES, module_features
from lora.weights import LoraWeights

NUM_SAMPLED = 8
NUM_INPUTS = 4
_CHUNK_ROWS = 1024
_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

Matrix = NDArray[np.float64]


def sampled_modules(manifest: AdapterManifest, seed: str) -> list[LoraModule]:
    """A few of those that `check_modules` can check, the same for the same seed."""
    found = checkable_modules(manifest)
    if len(found) <= NUM_SAMPLED:
        return found
    chosen = random.Random(seed).sample(range(len(found)), NUM_SAMPLED)
    return [found[place] for place in sorted(chosen)]


def checkable_modules(manifest: AdapterManifest) -> list[LoraModule]:
    """All but the embedding, and but those whose bias the adapter replaces as well."""
    biased = {each.key for each in manifest.overrides if each.what == "bias"}
    whole = {each.key for each in manifest.overrides if each.what != "bias"}
    return [
        module
        for module in manifest.modules
        if module.module != EMBED and not {(module.layer, module.module)} & (biased | whole)
    ]


def check_modules(
    modules: Sequence[LoraModule],
    file: Path,
    weights: LoraWeights,
    base: BaseSpec,
    tensors: BaseTensors,
) -> tuple[ModuleFigure, ...]:
    """Run each module's random inputs through both. `file` holds the adapter's tensors.

    Raises OSError where a file is shorter than its header says.
    """
    return tuple(_check(module, file, weights, base, tensors) for module in modules)


def _check(
    module: LoraModule, file: Path, weights: LoraWeights, base: BaseSpec, tensors: BaseTensors
) -> ModuleFigure:
    weight = _base_weight(module, tensors)
    a, b = _read(file, module.a), _read(file, module.b)
    if module.is_transposed:
        a, b = a.T, b.T
    magnitude = None if module.magnitude is None else _read(file, module.magnitude)
    inputs = np.random.default_rng(module.layer + 1).standard_normal((NUM_INPUTS, a.shape[1]))
    served = _served(module, inputs, weight, weights, base)
    wanted, change, norm = np.empty_like(served), 0.0, 0.0
    for begin in range(0, len(weight), _CHUNK_ROWS):
        rows = slice(begin, begin + _CHUNK_ROWS)
        own = weight[rows].astype(np.float64)
        merged = own + module.scale * (b[rows] @ a)
        if magnitude is not None:
            merged *= (magnitude[rows] / np.linalg.norm(merged, axis=1))[:, None]
        wanted[:, rows] = inputs @ (merged - own).T
        change += float(np.square(merged - own).sum())
        norm += float(np.square(own).sum())
    if module.bias is not None:
        wanted += module.scale * _read(file, module.bias)
    largest = float(np.abs(wanted).max())
    off = float(np.abs(served - wanted).max())
    error = off / largest if largest else off
    effect = (change / norm) ** 0.5 if norm else 0.0
    return ModuleFigure(module=_name(module), error=error, effect=effect)


def _served(
    module: LoraModule, inputs: Matrix, weight: NDArray[Any], weights: LoraWeights, base: BaseSpec
) -> Matrix:
    """What the adapter adds to the base's output as it is served, [NUM_INPUTS, out features]."""
    site, begin, end = _site(module, weights, base)
    x = torch.from_numpy(inputs).float()
    added = torch.zeros(NUM_INPUTS, end - begin)
    for part in site.parts:
        if begin <= part.out[0] and part.out[1] <= end:
            shrunk = x @ site.a[part.rank[0] : part.rank[1]].t()
            added[:, part.out[0] - begin : part.out[1] - begin] += shrunk @ part.b.t()
    if module.magnitude is not None:
        assert site.scale is not None, "DoRA without its scale"
        own = x @ torch.from_numpy(weight).float().t()
        added = (own + added) * site.scale[begin:end] - own
    if module.bias is not None:
        assert site.bias is not None, "a bias of B that was not read"
        added += site.bias[begin:end]
    served: Matrix = added.double().numpy()
    return served


def _site(module: LoraModule, weights: LoraWeights, base: BaseSpec) -> tuple[LoraSite, int, int]:
    """The site that holds a module, and the module's output features within it."""
    for site in SITES:
        outputs = site.outputs(base)
        if module.module in outputs:
            return weights.sites[module.layer, site.name], *outputs[module.module]
    num_out = base.vocab_size if module.module == HEAD else module_features(base)[module.module][1]
    return weights.sites[module.layer, module.module], 0, num_out


def _base_weight(module: LoraModule, tensors: BaseTensors) -> NDArray[np.float32]:
    """[out, in], as the engine computes with it."""
    parts = FUSED[module.module].modules if module.module in FUSED else (module.module,)
    weight: Tensor = torch.cat([tensors.weight((module.layer, part)) for part in parts])
    return weight.numpy()


def _read(file: Path, span: TensorSpan) -> Matrix:
    """A tensor's numbers, by its place in the file."""
    stored = _STORED[span.dtype]
    raw: NDArray[Any] = np.fromfile(file, dtype=stored, count=span.num_elements, offset=span.begin)
    if len(raw) != span.num_elements:
        raise OSError(f"tensor {span.name} is cut short")
    if span.dtype == "BF16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    values: Matrix = raw.astype(np.float64).reshape(span.shape)
    return values


def _name(module: LoraModule) -> str:
    return module.module if module.layer < 0 else f"layers.{module.layer}.{module.module}"
