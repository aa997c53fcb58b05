"""A safetensors file that does not keep the format's rules is refused by the rule it breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lora.manifest import ManifestLimits
from tests.builders.adapters import (
    ManifestReader,
    StoredTensor,
    header_of,
    lora_tensors,
    safetensors_bytes,
    zeros,
)
from tests.builders.refusals import refused

TENSORS = lora_tensors()
FIRST, SECOND, *_ = TENSORS
WHOLE = safetensors_bytes(TENSORS)
HEADER = json.dumps(header_of(TENSORS)).encode()


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def with_entry(name: str, **changes: Any) -> bytes:
    """The plain file, with one tensor's entry changed."""
    header = header_of(TENSORS)
    header[name] = {**header[name], **changes}
    return safetensors_bytes(TENSORS, header)


def offsets(name: str) -> list[int]:
    found: list[int] = header_of(TENSORS)[name]["data_offsets"]
    return found


BEGIN, END = offsets(SECOND)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_too_short_for_a_length(read: ManifestReader, size: int) -> None:
    with refused("safetensors_truncated"):
        read(tensors=b"\1" * size)


@pytest.mark.parametrize("length", [0, 2**64 - 1, len(WHOLE), 2**40])
def test_header_length_that_does_not_fit_the_file(read: ManifestReader, length: int) -> None:
    with refused("safetensors_header_length"):
        read(tensors=length.to_bytes(8, "little") + WHOLE[8:])


def test_header_beyond_the_limit_is_not_read(read: ManifestReader) -> None:
    limits = ManifestLimits(max_header_bytes=100)
    with refused("safetensors_header_too_large"):
        read(tensors=with_header(b"\xff" * 101), limits=limits)
    with refused("safetensors_header_too_large"):
        read(limits=limits)


def test_as_many_tensors_as_the_limit_and_no_more(read: ManifestReader) -> None:
    num = len(TENSORS)
    read(limits=ManifestLimits(max_tensors=num))
    with refused("too_many_tensors"):
        read(limits=ManifestLimits(max_tensors=num - 1))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b'{"\xff":1}', id="not UTF-8"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"[]", id="array"),
        pytest.param(b'"x"', id="string"),
        pytest.param(b" " + HEADER, id="leading space"),
        pytest.param(b"\xef\xbb\xbf" + HEADER, id="byte order mark"),
        pytest.param(HEADER + b"x", id="trailing byte"),
        pytest.param(HEADER + b"\n", id="trailing newline"),
        pytest.param(HEADER + b"{}", id="second document"),
        pytest.param(HEADER[:-1] + b",}", id="trailing comma"),
        pytest.param(b'{"a":' + b"[" * 100_000, id="depth of arrays"),
        pytest.param(b'{"a":' * 100_000, id="depth of objects"),
        pytest.param(b'{"__metadata__":' + b'{"a":' * 100_000, id="depth in metadata"),
        pytest.param(b'{"a":1}', id="entry is a number"),
        pytest.param(b'{"a":{}}', id="entry is empty"),
        pytest.param(b'{"a":{"dtype":"F32","shape":[1]}}', id="offsets missing"),
        pytest.param(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}', id="unknown field"
        ),
        pytest.param(b'{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}', id="float"),
        pytest.param(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', id="NaN"),
        pytest.param(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}', id="one offset"),
        pytest.param(b'{"a":{"dtype":"F32","shape":' + b"9" * 9999 + b"}}", id="huge integer"),
        pytest.param(
            b'{"a":{"dtype":"F32","shape":[' + b",".join([b"1"] * 9) + b'],"data_offsets":[0,4]}}',
            id="nine dimensions",
        ),
        pytest.param(b'{"__metadata__":{"a":1}}', id="metadata is not text"),
        pytest.param(b'{"__metadata__":{"a":{}}}', id="metadata is nested"),
        pytest.param(b'{"__metadata__":[]}', id="metadata is an array"),
        pytest.param(b'{"__metadata__":{"a":"' + b"x" * (64 << 10) + b'"}}', id="metadata is long"),
    ],
)
def test_malformed_header(read: ManifestReader, header: bytes) -> None:
    with refused("safetensors_header_invalid"):
        read(tensors=with_header(header, bytes(4)))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"{" + HEADER[1:-1] + b"," + HEADER[1:], id="tensor and metadata twice"),
        pytest.param(
            b'{"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}', id="field"
        ),
        pytest.param(b'{"__metadata__":{"a":"1","a":"2"}}', id="metadata"),
        pytest.param(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"\\u0061":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            id="escaped name",
        ),
    ],
)
def test_a_name_given_twice(read: ManifestReader, header: bytes) -> None:
    with refused("safetensors_duplicate_key"):
        read(tensors=with_header(header, bytes(4)))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(with_entry(SECOND, data_offsets=[BEGIN + 4, END + 4]), id="hole"),
        pytest.param(with_entry(SECOND, data_offsets=[BEGIN - 4, END - 4]), id="overlap"),
        pytest.param(with_entry(SECOND, data_offsets=[END, BEGIN]), id="backwards"),
        pytest.param(with_entry(FIRST, data_offsets=[-4, END]), id="negative"),
        pytest.param(with_entry(SECOND, data_offsets=[10**9, 10**9 + END - BEGIN]), id="outside"),
        pytest.param(with_entry(SECOND, data_offsets=[BEGIN, 2**63]), id="beyond 64 bits"),
        pytest.param(with_entry(list(TENSORS)[-1], data_offsets=[0, 10**12]), id="longer than all"),
        pytest.param(with_entry(SECOND, data_offsets=offsets(FIRST)), id="the same bytes twice"),
    ],
)
def test_offsets_that_do_not_tile_the_data(read: ManifestReader, content: bytes) -> None:
    with refused("safetensors_offsets_invalid"):
        read(tensors=content)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [8, 63]},
        {"shape": [8]},
        {"shape": [2**40, 2**40]},
        {"shape": [2**62, 4]},
        {"shape": [2**64]},
        {"shape": [-8, -64]},
        {"dtype": "F16"},
        {"dtype": "F4"},
    ],
)
def test_shape_and_dtype_that_do_not_give_the_bytes(
    read: ManifestReader, changes: dict[str, Any]
) -> None:
    with refused("safetensors_size_mismatch"):
        read(tensors=with_entry(FIRST, **changes))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(WHOLE[:-1], id="one byte short"),
        pytest.param(WHOLE[: len(WHOLE) - 3000], id="several tensors short"),
        pytest.param(WHOLE + b"PK\x03\x04 and an archive", id="tail"),
    ],
)
def test_data_that_is_cut_off_or_followed(read: ManifestReader, content: bytes) -> None:
    with refused("safetensors_length_mismatch"):
        read(tensors=content)


@pytest.mark.parametrize("dtype", ["f32", "F128", "", "float32", "}"])
def test_dtype_that_the_format_does_not_have(read: ManifestReader, dtype: str) -> None:
    code = "safetensors_header_invalid" if dtype == "}" else "safetensors_dtype_unknown"
    with refused(code):
        read(tensors=with_entry(FIRST, dtype=dtype))


@pytest.mark.parametrize("dtype", ["F64", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F4", "C64"])
def test_dtype_that_is_not_served(read: ManifestReader, dtype: str) -> None:
    size = {"F64": 8, "C64": 8, "F4": 0.5}.get(dtype, 1)
    odd = StoredTensor(dtype, (8, 64), bytes(int(size * 8 * 64)))
    with refused("dtype_unsupported", param=FIRST):
        read(tensors={**TENSORS, FIRST: odd})


@pytest.mark.parametrize("header", [b"{}", b"{ }", b'{"__metadata__":{}}', b"{}    "])
def test_no_tensors_at_all(read: ManifestReader, header: bytes) -> None:
    with refused("adapter_empty"):
        read(tensors=with_header(header))


def test_tensor_without_elements(read: ManifestReader) -> None:
    with refused("tensor_empty", param=FIRST):
        read(tensors={**TENSORS, FIRST: zeros((0, 64))})


@pytest.mark.parametrize("name", ["", "a b", "a/../b", "é", "a\nb", "x" * 513, "\ud800"])
def test_odd_name(read: ManifestReader, name: str) -> None:
    with refused("tensor_name_invalid") as refusal:
        read(tensors={**TENSORS, name: zeros((1, 1))})
    for finding in refusal.findings:
        assert json.dumps(finding.message).isascii()
        finding.message.encode()
        assert len(finding.message) < 1000


def test_every_broken_rule_is_listed(read: ManifestReader) -> None:
    header = header_of(TENSORS)
    header[FIRST]["shape"] = [1, 1]
    header[SECOND]["data_offsets"] = [BEGIN + 4, END + 4]
    with refused("safetensors_offsets_invalid") as refusal:
        read({"peft_type": "IA3"}, safetensors_bytes(TENSORS, header))
    assert {
        "safetensors_offsets_invalid",
        "safetensors_size_mismatch",
        "peft_type_unsupported",
    } <= refusal.codes


def test_a_long_list_is_cut_and_counted(read: ManifestReader) -> None:
    many = {f"{name}.{i}": zeros((0,)) for name in TENSORS for i in range(50)}
    with refused("tensor_empty") as refusal:
        read(tensors=many)
    found = [each for each in refusal.findings if each.code == "tensor_empty"]
    assert len(found) == 21
    assert found[-1].message == f"... and {len(many) - 20} more"
