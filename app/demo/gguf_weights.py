"""A Llama GGUF's tensors as a Hugging Face `model.safetensors` in bfloat16, without torch.

Knows nothing of tokenizers or folders. Invariant: every tensor of the file is either converted
under its Hugging Face name or named in an error; none is dropped but a tied `lm_head`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.([a-z_]+)\.weight")


class UnknownTensorError(ValueError):
    """The GGUF holds a tensor that a tied Llama model has no place for."""


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = _LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise UnknownTensorError(f"the GGUF holds a tensor that is not known here: {name}")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"


def undo_rope_permutation(weight: Float32, num_heads: int) -> Float32:
    """Rows from llama.cpp's interleaved rotary order back to Hugging Face's half-and-half.

    `convert_hf_to_gguf.py` reorders the rows of q and k of Llama models head by head, so that
    the two halves of a rotary pair are neighbours. weight: [num_heads * head_dim, in].
    """
    half = weight.shape[0] // num_heads // 2
    pairs = weight.reshape(num_heads, half, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def to_bfloat16_bits(values: Float32) -> npt.NDArray[np.uint16]:
    """Round finite float32 to bfloat16, to nearest, ties to even; the bits as uint16."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_weights(
    reader: Any,
    target: Path,
    *,
    num_heads: int,
    num_kv_heads: int,
    on_progress: Callable[[float], None],
) -> None:
    """Write every tensor of `reader` (a `gguf.GGUFReader`) to the safetensors file `target`.

    The file is written as its format says (u64 header length, JSON header, data) because the
    library's own writer has no bfloat16 without torch, and a whole copy need not be in memory.
    """
    from gguf.quants import dequantize  # NOTE: loads slowly, and only a first start needs it

    heads = {"attn_q": num_heads, "attn_k": num_kv_heads}
    with target.open("wb") as file:
        file.write(_header(reader.tensors))
        for done, tensor in enumerate(reader.tensors, start=1):
            weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            kind = tensor.name.split(".")[-2]
            if kind in heads:
                weight = undo_rope_permutation(weight, heads[kind])
            file.write(to_bfloat16_bits(weight).astype("<u2").tobytes())
            on_progress(done / len(reader.tensors))


def _header(tensors: list[Any]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        begin, end = end, end + 2 * math.prod(shape)
        header[hugging_face_name(tensor.name)] = {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # Data starts at a multiple of 8 bytes.
    return struct.pack("<Q", len(text)) + text
