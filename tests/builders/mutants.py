"""Structure-aware mutants of an adapter: a good one with one thing changed, as a bug, a bad disk or
an attacker could change it.

Knows nothing of what is made of them. Invariant: the same seed gives the same mutant.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

Files = dict[str, bytes]
Header = dict[str, Any]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DTYPES = ("F32", "F16", "BF16", "F64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "C64", "X", "")
FLOATS = (float("nan"), float("inf"), -float("inf"), 1e30, 1e38, 1e-45, 0.0, -0.0)
ODD = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 1.5, 1e300),
    *("", "x" * 300, [], [0], {}, {"a": [{}]}),
)
NAMES = (".*", "(a+)+$", "../../x", "\x00", "q_proj", "lm_head", "norm", "é", "a" * 5000)


def mutant(files: Files, seed: int) -> tuple[str, Files]:
    """What was done to `files`, and what they are then."""
    draw = random.Random(seed)
    act = draw.choice(ACTS)
    if act in _CONFIG_ACTS:
        return act.__name__, files | {CONFIG: act(files[CONFIG], draw)}
    return act.__name__, files | {WEIGHTS: act(files[WEIGHTS], draw)}


def split(data: bytes) -> tuple[Header, bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header: Header | bytes, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def flip_any_bit(data: bytes, draw: random.Random) -> bytes:
    return _flip(data, draw.randrange(len(data)), draw)


def flip_header_bit(data: bytes, draw: random.Random) -> bytes:
    return _flip(data, draw.randrange(len(data) - len(split(data)[1])), draw)


def splice(data: bytes, draw: random.Random) -> bytes:
    begin, end, at = sorted(draw.randrange(len(data)) for _ in range(3))
    kind = draw.randrange(3)
    if kind == 0:
        return data[:begin] + data[end:]
    if kind == 1:
        return data[:at] + data[begin:end] + data[at:]
    return data[:begin] + draw.randbytes(end - begin) + data[end:]


def lengthen(data: bytes, draw: random.Random) -> bytes:
    return data + draw.choice([b"\0", b"\0" * 4096, draw.randbytes(100), b"PK\x03\x04zip"])


def shorten(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.choice([0, 7, 8, 9, len(data) - 1, draw.randrange(len(data))])]


def pad_header(data: bytes, draw: random.Random) -> bytes:
    header, body = split(data)
    return join(json.dumps(header).encode() + b" " * draw.randrange(1, 5000), body)


def change_length(data: bytes, draw: random.Random) -> bytes:
    length = draw.choice([0, 1, 2**64 - 1, len(data), draw.randrange(2 * len(data))])
    return length.to_bytes(8, "little") + data[8:]


def change_offset(data: bytes, draw: random.Random) -> bytes:
    header, body = split(data)
    offsets = header[_any(header, draw)]["data_offsets"]
    offsets[draw.randrange(2)] += draw.choice([-4, -1, 1, 4, 2**31, 2**63, -(2**40)])
    return join(header, body)


def change_shape(data: bytes, draw: random.Random) -> bytes:
    header, body = split(data)
    entry = header[_any(header, draw)]
    shape = entry["shape"]
    place = draw.randrange(len(shape))
    kind = draw.randrange(5)
    if kind == 0:
        shape.reverse()
    elif kind == 1:
        shape[place] += draw.choice([-1, 1, 2**31, 2**62])
    elif kind == 2:
        shape[place] = draw.choice([0, -1, 1])
    elif kind == 3:
        shape.append(1)
    else:
        entry["shape"] = [draw.choice([0, 1, 8]) for _ in range(draw.randrange(12))]
    return join(header, body)


def change_dtype(data: bytes, draw: random.Random) -> bytes:
    header, body = split(data)
    header[_any(header, draw)]["dtype"] = draw.choice(DTYPES)
    return join(header, body)


def change_entry(data: bytes, draw: random.Random) -> bytes:
    header, body = split(data)
    name = _any(header, draw)
    if draw.random() < 0.5:
        header[name][draw.choice(["dtype", "shape", "data_offsets", "extra"])] = draw.choice(ODD)
    else:
        header[name] = draw.choice(ODD)
    return join(header, body)


def swap_a_and_b(data: bytes, draw: random.Random) -> bytes:
    """The names of one module's two matrices."""
    header, body = split(data)
    name = draw.choice([name for name in header if ".lora_A" in name])
    other = name.replace(".lora_A", ".lora_B")
    header[name], header[other] = header[other], header[name]
    return join(header, body)


def swap_tensors(data: bytes, draw: random.Random) -> bytes:
    """The names of any two tensors: where their shapes agree it is another good adapter."""
    header, body = split(data)
    one, other = _any(header, draw), _any(header, draw)
    header[one], header[other] = header[other], header[one]
    return join(header, body)


def duplicate_key(data: bytes, draw: random.Random) -> bytes:
    header, body = split(data)
    name = _any(header, draw)
    again = json.dumps({name: header[_any(header, draw)]}).encode()
    return join(json.dumps(header).encode()[:-1] + b"," + again[1:], body)


def drop_tensor(data: bytes, draw: random.Random) -> bytes:
    """With its bytes, or without."""
    header, body = split(data)
    name = _any(header, draw)
    begin, end = header.pop(name)["data_offsets"]
    if draw.random() < 0.5:
        return join(header, body)
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [each - (end - begin) for each in entry["data_offsets"]]
    return join(header, body[:begin] + body[end:])


def rename_tensor(data: bytes, draw: random.Random) -> bytes:
    header, body = split(data)
    name = _any(header, draw)
    old, new = draw.choice(
        [
            (".0.", ".7."),
            (".1.", ".01."),
            ("self_attn", "attn"),
            ("lora_A", "lora_a"),
            ("lora_B", "lora_E"),
            ("base_model.model.", ""),
            (".weight", ".default.weight"),
            (".weight", ".bias"),
            ("q_proj", "k_proj"),
            ("model", "mödel"),
        ]
    )
    header = {each.replace(old, new, 1) if each == name else each: header[each] for each in header}
    return join(header, body)


def add_tensor(data: bytes, draw: random.Random) -> bytes:
    header, body = split(data)
    name = draw.choice(["score.weight", "model.norm.weight", "lora_A", "x", "", "__metadata__ "])
    header[name] = {"dtype": "F32", "shape": [2], "data_offsets": [len(body), len(body) + 8]}
    return join(header, body + bytes(8))


def change_metadata(data: bytes, draw: random.Random) -> bytes:
    header, body = split(data)
    header["__metadata__"] = draw.choice([*ODD, {"format": "pt"}, {"x": "y" * 70_000}])
    return join(header, body)


def change_number(data: bytes, draw: random.Random) -> bytes:
    """One float of the data."""
    begin = len(data) - len(split(data)[1])
    at = begin + 4 * draw.randrange((len(data) - begin) // 4)
    return data[:at] + struct.pack("<f", draw.choice(FLOATS)) + data[at + 4 :]


def change_field(data: bytes, draw: random.Random) -> bytes:
    config = json.loads(data)
    config[draw.choice(list(config))] = draw.choice([*ODD, *NAMES])
    return json.dumps(config).encode()


def add_field(data: bytes, draw: random.Random) -> bytes:
    config = json.loads(data)
    config[draw.choice(["use_next_year", "lora_scale", "__class__"])] = draw.choice([*ODD, *NAMES])
    return json.dumps(config).encode()


def change_targets(data: bytes, draw: random.Random) -> bytes:
    config = json.loads(data)
    name = draw.choice(["target_modules", "exclude_modules", "modules_to_save", "layers_pattern"])
    config[name] = draw.choice([*NAMES, [draw.choice(NAMES)], [draw.choice(NAMES), "v_proj"]])
    return json.dumps(config).encode()


def damage_config(data: bytes, draw: random.Random) -> bytes:
    return draw.choice([flip_any_text, splice, lengthen])(data, draw)


def flip_any_text(data: bytes, draw: random.Random) -> bytes:
    return _flip(data, draw.randrange(len(data)), draw)


def _flip(data: bytes, at: int, draw: random.Random) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _any(header: Header, draw: random.Random) -> str:
    return draw.choice([name for name in header if name != "__metadata__"])


Act = Callable[[bytes, random.Random], bytes]
_CONFIG_ACTS: tuple[Act, ...] = (change_field, add_field, change_targets, damage_config)
ACTS: tuple[Act, ...] = (
    *(flip_any_bit, flip_header_bit, splice, lengthen, shorten, pad_header, change_length),
    *(change_offset, change_shape, change_dtype, change_entry, swap_a_and_b, swap_tensors),
    *(duplicate_key, drop_tensor, rename_tensor, add_tensor, change_metadata, change_number),
    *_CONFIG_ACTS,
)
