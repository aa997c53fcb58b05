"""Files that strangers send: a good adapter of the tests' base, and what differs in each of them.

Knows nothing of how files are sent, nor of what is answered.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.adapter_files import adapter_config
from tests.builders.adapters import (
    HEAD,
    Tensors,
    header_of,
    lora_tensors,
    safetensors_bytes,
    zeros,
)
from tests.builders.adapters import TINY_BASE as SHAPES
from tests.builders.refused_adapters import REFUSED_FIELDS
from tests.builders.tiny_base import CONFIG, MODEL_ID

Files = dict[str, bytes]

# The base that is served: of `SHAPES`, with another vocabulary.
BASE = replace(SHAPES, model_id=MODEL_ID, vocab_size=CONFIG["vocab_size"])
RANK = 4
PLAIN = lora_tensors(base=BASE, rank=RANK)
WHOLE = safetensors_bytes(PLAIN)
FIRST, SECOND = list(PLAIN)[:2]
Q0 = f"{HEAD}layers.0.self_attn.q_proj"
A0, B0 = f"{Q0}.lora_A.weight", f"{Q0}.lora_B.weight"
TEXT = json.dumps(header_of(PLAIN)).encode()
PICKLE = pickle.dumps({"lora_A": [1, 2, 3]}, 2)


def adapter(tensors: Tensors | None = None, **changes: Any) -> Files:
    """A good adapter, but for what is given."""
    weights = WHOLE if tensors is None else safetensors_bytes(tensors)
    return {CONFIG_FILE: adapter_config(**changes), WEIGHTS_FILE: weights}


def weights(content: bytes) -> Files:
    return {CONFIG_FILE: adapter_config(), WEIGHTS_FILE: content}


def configured(content: bytes) -> Files:
    return {CONFIG_FILE: content, WEIGHTS_FILE: WHOLE}


def beside(name: str, content: bytes = b"x") -> Files:
    return {**adapter(), name: content}


def also(tensors: Mapping[str, tuple[int, ...]]) -> Files:
    """The good adapter with tensors of these shapes besides, or in the place of its own."""
    return adapter({**PLAIN, **{name: zeros(shape) for name, shape in tensors.items()}})


def pair(module: str) -> Files:
    """The good adapter, and a module besides that is adapted too."""
    return also({f"{module}.lora_A.weight": (RANK, 64), f"{module}.lora_B.weight": (64, RANK)})


def headed(header: bytes, data: bytes = bytes(4)) -> Files:
    return weights(len(header).to_bytes(8, "little") + header + data)


def entry(name: str, **changes: Any) -> Files:
    """The good adapter, and one tensor's entry in the header changed."""
    header = header_of(PLAIN)
    header[name] = {**header[name], **changes}
    return weights(safetensors_bytes(PLAIN, header))


def spliced(field: str) -> Files:
    """A field of the configuration as it is written here, legal JSON or not."""
    return configured(adapter_config()[:-1] + f", {field}}}".encode())


def fields(code: str) -> tuple[Files, ...]:
    """Of the table of fields: those with this answer."""
    return tuple(adapter(**changes) for changes, found, _ in REFUSED_FIELDS if found == code)


def numbered(value: float) -> Files:
    """One number of the good adapter is this one."""
    data = bytearray(PLAIN[A0].data)
    data[12:16] = struct.pack("<f", value)
    return adapter({**PLAIN, A0: replace(PLAIN[A0], data=bytes(data))})


def zipped(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, bytes(1 << 20))
    return buffer.getvalue()


def tarred() -> bytes:
    """With a link to what is none of an adapter's business."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo(WEIGHTS_FILE)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return buffer.getvalue()


def numpy_archive() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(4))
    return buffer.getvalue()


def many_tensors(num: int) -> bytes:
    text = b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    return b"{" + b",".join(text % number for number in range(num)) + b"}"


def without_effect() -> Tensors:
    return {
        name: zeros(tensor.shape) if "lora_B" in name else tensor for name, tensor in PLAIN.items()
    }
