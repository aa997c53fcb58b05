"""The numeric check finds NaN and infinity in any stored type, and adapters that do nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lora.limits import DEFAULT_LIMITS
from lora.values import MAX_MAGNITUDE, check_values
from tests.builders.adapters import (
    HEAD,
    ManifestReader,
    StoredTensor,
    Tensors,
    header_of,
    lora_tensors,
    plain_config,
    safetensors_bytes,
    stored,
    zeros,
)

A0 = f"{HEAD}layers.0.self_attn.q_proj.lora_A.weight"
NOT_FINITE = {
    "F32": [0x7FC00000, 0x7F800000, 0xFF800000, 0x7F800001],
    "F16": [0x7E00, 0x7C00, 0xFC00],
    "BF16": [0x7FC0, 0x7F80, 0xFF80],
}
LARGEST = {"F32": 0x477FE000, "F16": 0x7BFF, "BF16": 0xC77F}  # 65504, and the next below it
TOO_LARGE = {"F32": [0x477FE001, 0xC77FE001, 0x7F7FFFFF], "BF16": [0x4780, 0xC780, 0x7F7F]}


def codes(read: ManifestReader, tensors: Tensors, **changes: object) -> list[tuple[str, str]]:
    manifest = read(plain_config(**changes), tensors)
    return [(found.code, found.severity) for found in check_values(read.weights, manifest)]


def with_bits(tensors: Tensors, name: str, bits: int, position: int) -> Tensors:
    """One element of one tensor, replaced by its stored bits."""
    tensor = tensors[name]
    values = np.frombuffer(tensor.data, {"F32": "<u4"}.get(tensor.dtype, "<u2")).copy()
    values[position] = bits
    return {**tensors, name: StoredTensor(tensor.dtype, tensor.shape, values.tobytes())}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_ordinary_values_have_no_finding(read: ManifestReader, dtype: str) -> None:
    tensors = lora_tensors(dtype=dtype)
    assert codes(read, tensors) == []
    assert codes(read, with_bits(tensors, A0, LARGEST[dtype], 3)) == []


@pytest.mark.parametrize(
    ("dtype", "bits"), [(dtype, bits) for dtype, row in NOT_FINITE.items() for bits in row]
)
@pytest.mark.parametrize("position", [0, -1])
def test_one_nan_or_infinity_is_found(
    read: ManifestReader, dtype: str, bits: int, position: int
) -> None:
    tensors = with_bits(lora_tensors(dtype=dtype), A0, bits, position)
    manifest = read(tensors=tensors)
    (found,) = check_values(read.weights, manifest)
    assert (found.code, found.severity, found.param) == ("tensor_nonfinite", "error", A0)


@pytest.mark.parametrize(
    ("dtype", "bits"), [(dtype, bits) for dtype, row in TOO_LARGE.items() for bits in row]
)
def test_a_number_that_sums_overflow_with_is_found(
    read: ManifestReader, dtype: str, bits: int
) -> None:
    manifest = read(tensors=with_bits(lora_tensors(dtype=dtype), A0, bits, 7))
    (found,) = check_values(read.weights, manifest)
    assert (found.code, found.severity, found.param) == ("dtype_overflow", "error", A0)
    assert found.actual is not None and float(found.actual) >= 65504


def test_up_to_the_largest_number_no_norm_of_a_row_overflows() -> None:
    """At the largest rank and scale that are taken, on the widest base: as DoRA squares them."""
    weight = DEFAULT_LIMITS.max_scale * DEFAULT_LIMITS.max_rank * MAX_MAGNITUDE**2
    squares = np.full(1 << 17, weight, np.float32) ** 2
    assert np.isfinite(squares.sum(dtype=np.float32))


def test_it_is_found_beyond_the_first_chunk(
    read: ManifestReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lora.values._CHUNK_ELEMENTS", 100)
    tensors = with_bits(lora_tensors(), A0, 0x7FC00000, -1)
    assert codes(read, tensors) == [("tensor_nonfinite", "error")]


@pytest.mark.parametrize("pad", range(4))
def test_data_at_any_alignment_is_read(read: ManifestReader, pad: int) -> None:
    tensors = lora_tensors()
    header = json.dumps(header_of(tensors)).encode() + b" " * pad
    manifest = read(tensors=safetensors_bytes(tensors, header))
    assert check_values(read.weights, manifest) == []


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_an_untrained_adapter_is_a_warning(read: ManifestReader, dtype: str) -> None:
    tensors = {
        name: zeros(tensor.shape, dtype) if "lora_B" in name else tensor
        for name, tensor in lora_tensors(dtype=dtype).items()
    }
    assert codes(read, tensors) == [("no_effect", "warning")]


def test_minus_zero_is_zero_and_the_smallest_number_is_not(read: ManifestReader) -> None:
    tensors = {
        name: zeros(tensor.shape) if "lora_B" in name else tensor
        for name, tensor in lora_tensors().items()
    }
    b0 = A0.replace("lora_A", "lora_B")
    assert codes(read, with_bits(tensors, b0, 0x80000000, 5)) == [("no_effect", "warning")]
    assert codes(read, with_bits(tensors, b0, 1, 5)) == []


def test_a_scale_of_zero_has_no_effect(read: ManifestReader) -> None:
    assert codes(read, lora_tensors(), lora_alpha=0) == [("no_effect", "warning")]


def test_a_file_that_was_cut_since_is_an_error(read: ManifestReader) -> None:
    manifest = read()
    read.weights.write_bytes(read.weights.read_bytes()[:-1])
    with pytest.raises(ValueError, match="beyond the end"):
        check_values(read.weights, manifest)


def test_nan_is_found_in_every_form(read: ManifestReader) -> None:
    forms = {
        f"{HEAD}norm.weight": (64,),
        f"{HEAD}embed_tokens.token_adapter.trainable_tokens_delta": (1, 64),
        **{
            f"{HEAD}layers.{layer}.self_attn.{module}.lora_magnitude_vector": (width,)
            for layer in range(3)
            for module, width in (("q_proj", 64), ("v_proj", 32))
        },
    }
    tensors = lora_tensors() | {name: zeros(shape) for name, shape in forms.items()}
    changes = {"use_dora": True, "modules_to_save": ["model.norm"], "trainable_token_indices": [5]}
    assert codes(read, tensors, **changes) == []
    for name in forms:
        broken = with_bits(tensors, name, 0x7FC00000, 0)
        assert codes(read, broken, **changes) == [("tensor_nonfinite", "error")], name


EMBEDDING_A = f"{HEAD}embed_tokens.lora_embedding_A"
HEAD_B = "base_model.model.lm_head.lora_B.weight"


def tied_matrices(dtype: str = "F32") -> Tensors:
    """A head whose A and B are the embedding's, transposed."""
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(shape, np.float32) for shape in ((8, 128), (64, 8)))
    return lora_tensors() | {
        EMBEDDING_A: stored(a, dtype),
        f"{HEAD}embed_tokens.lora_embedding_B": stored(b, dtype),
        "base_model.model.lm_head.lora_A.weight": stored(b.T.copy(), dtype),
        HEAD_B: stored(a.T.copy(), dtype),
    }


TIED_MATRICES = {
    "target_modules": ["q_proj", "v_proj", "embed_tokens"],
    "ensure_weight_tying": True,
}
LAST_BIT = {"F32": 0x3F800001, "F16": 0x3C01, "BF16": 0x3F81}


@pytest.mark.parametrize("dtype", LAST_BIT)
@pytest.mark.parametrize("position", [0, 700, -1])
def test_a_tied_pair_that_differs_is_found(
    read: ManifestReader, monkeypatch: pytest.MonkeyPatch, dtype: str, position: int
) -> None:
    """PEFT would give both the head's numbers."""
    monkeypatch.setattr("lora.tied_values._CHUNK_ELEMENTS", 100)
    tensors = tied_matrices(dtype)
    assert codes(read, tensors, **TIED_MATRICES) == []
    differing = with_bits(tensors, HEAD_B, LAST_BIT[dtype], position)
    manifest = read(plain_config(**TIED_MATRICES), differing)
    (found,) = check_values(read.weights, manifest)
    assert (found.code, found.severity, found.param) == ("tensor_duplicate", "error", HEAD_B)
    untied = {**TIED_MATRICES, "target_modules": ["q_proj", "v_proj", "embed_tokens", "lm_head"]}
    assert codes(read, differing, **{**untied, "ensure_weight_tying": False}) == []


def test_whole_modules_that_are_tied_hold_the_same_numbers_in_any_type(
    read: ManifestReader,
) -> None:
    changes = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    values = np.random.default_rng(6).integers(-8, 8, (128, 64)).astype(np.float32)
    embedding, head = f"{HEAD}embed_tokens.weight", "base_model.model.lm_head.weight"
    for dtype in LARGEST:
        tensors = lora_tensors() | {embedding: stored(values), head: stored(values, dtype)}
        assert codes(read, tensors, **changes) == []
        differing = with_bits(tensors, head, 0, 5)
        assert codes(read, differing, **changes) == [("tensor_duplicate", "error")]


@pytest.mark.parametrize("pad", range(4))
def test_a_tied_pair_at_any_alignment_is_read(read: ManifestReader, pad: int) -> None:
    tensors = tied_matrices()
    header = json.dumps(header_of(tensors)).encode() + b" " * pad
    manifest = read(plain_config(**TIED_MATRICES), safetensors_bytes(tensors, header))
    assert check_values(read.weights, manifest) == []
