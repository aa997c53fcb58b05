"""A Hugging Face folder -> a `Decoder`: reads safetensors, fuses sites, packs weights.

Knows nothing of adapters beyond the order of a site's projections (`lora.sites`). Every tensor of
the checkpoint is used or is an error: a base that is served half would be wrong without a sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.models import llama
from engine.models.decoder import (
    AttentionShape,
    Decoder,
    DecoderLayer,
    PackedLinear,
    RmsNorm,
    TokenEmbedding,
)
from kernels.interface import KernelBackend
from lora.base_files import weight_files
from lora.base_spec import BaseSpec, UnsupportedBaseError
from lora.sites import DOWN, GATE_UP, OUT, QKV, Site

# Rotary forms whose frequencies depend on the length of the running sequence: K written for a
# short context would be wrong for a longer one.
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


class Checkpoint:
    """All tensors of a folder's safetensors files, each to be taken once."""

    def __init__(
        self, folder: Path, dtype: torch.dtype, device: torch.device, stack: ExitStack
    ) -> None:
        self._dtype = dtype
        self._device = device
        self._files = {}
        for path in weight_files(folder):
            file = stack.enter_context(safe_open(str(path), framework="pt"))
            self._files.update(dict.fromkeys(file.keys(), file))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str) -> Tensor:
        """Raises UnsupportedBaseError where the tensor is missing (or was taken)."""
        file = self._files.pop(name, None)
        if file is None:
            raise UnsupportedBaseError(f"the checkpoint has no tensor {name}")
        tensor: Tensor = file.get_tensor(name).to(self._device, self._dtype)
        return tensor

    def left_over(self) -> list[str]:
        """Tensors that nobody took; stored rotary frequencies are derived, not weights."""
        return sorted(name for name in self._files if not name.endswith("rotary_emb.inv_freq"))


def load_decoder(
    folder: Path, base: BaseSpec, dtype: torch.dtype, ops: KernelBackend, device: torch.device
) -> Decoder:
    """Read the base model in `folder` onto `device`, and pack it.

    Raises:
        UnsupportedBaseError: tensors are missing or left over, or its rotary form is not served.
    """
    config = AutoConfig.from_pretrained(str(folder))
    if config.hidden_act != "silu":
        raise UnsupportedBaseError(f"activation {config.hidden_act!r} is not served")
    cos, sin = rotary_tables(config, base)
    with ExitStack() as stack:
        checkpoint = Checkpoint(folder, dtype, device, stack)
        embedding = checkpoint.take(llama.EMBEDDING)
        tied = base.tie_word_embeddings
        if tied and llama.LM_HEAD in checkpoint:
            checkpoint.take(llama.LM_HEAD)  # some checkpoints store the tied copy too
        lm_head = embedding if tied else checkpoint.take(llama.LM_HEAD)
        eps = config.rms_norm_eps
        layers = [_load_layer(checkpoint, index, eps, ops) for index in range(base.num_layers)]
        norm = RmsNorm(checkpoint.take(llama.NORM), eps, ops)
        if unused := checkpoint.left_over():
            raise UnsupportedBaseError(f"tensors that no part of the model uses: {unused[:5]}")
    return Decoder(
        embedding=TokenEmbedding(embedding),
        layers=layers,
        norm=norm,
        lm_head=PackedLinear(lm_head, None, ops),
        shape=AttentionShape(base.num_heads, base.num_kv_heads, base.head_dim),
        cos=cos.to(device, dtype),
        sin=sin.to(device, dtype),
        ops=ops,
    )


def rotary_tables(config: Any, base: BaseSpec) -> tuple[Tensor, Tensor]:
    """cos and sin [max_model_len, head_dim] in float32, half-split form, as transformers has them.

    Raises:
        UnsupportedBaseError: a rotary form whose frequencies depend on the sequence's length.
    """
    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if kind in LENGTH_DEPENDENT_ROPE:
        raise UnsupportedBaseError(f"rotary form {kind!r} is not served")
    if kind == "default":
        steps = torch.arange(0, base.head_dim, 2, dtype=torch.int64).float() / base.head_dim
        frequencies, factor = 1.0 / (parameters["rope_theta"] ** steps), 1.0
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    positions = torch.arange(base.max_model_len, dtype=torch.float32)
    angles = positions[:, None] * frequencies[None, :].float()
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * factor, angles.sin() * factor


def _load_layer(checkpoint: Checkpoint, index: int, eps: float, ops: KernelBackend) -> DecoderLayer:
    def norm(name: str) -> RmsNorm:
        return RmsNorm(checkpoint.take(name.format(layer=index)), eps, ops)

    def site(which: Site) -> PackedLinear:
        weights = list(_module_tensors(checkpoint, index, which, "weight"))
        biases = list(_module_tensors(checkpoint, index, which, "bias"))
        return PackedLinear(torch.cat(weights), torch.cat(biases) if biases else None, ops)

    return DecoderLayer(
        input_norm=norm(llama.INPUT_NORM),
        qkv_proj=site(QKV),
        o_proj=site(OUT),
        post_attention_norm=norm(llama.POST_ATTENTION_NORM),
        gate_up_proj=site(GATE_UP),
        down_proj=site(DOWN),
    )


def _module_tensors(checkpoint: Checkpoint, layer: int, site: Site, kind: str) -> Iterator[Tensor]:
    names = [llama.MODULE.format(layer=layer, module=name, kind=kind) for name in site.modules]
    if kind == "weight" or any(name in checkpoint for name in names):
        yield from map(checkpoint.take, names)
