"""Whatever the bytes, reading an adapter ends in a manifest or in a ManifestError."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lora.manifest import AdapterManifest, ManifestError, TensorSpan
from tests.builders.adapters import (
    ManifestReader,
    header_of,
    lora_tensors,
    plain_config,
    safetensors_bytes,
)

TENSORS = lora_tensors(layers=[0])
WHOLE = safetensors_bytes(TENSORS)
HEADER = json.dumps(header_of(TENSORS)).encode()
CONFIG = json.dumps(plain_config(layers_to_transform=[0])).encode()
HEADER_END = 8 + len(HEADER)

FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> ManifestReader:
    return ManifestReader(tmp_path_factory.mktemp("fuzz"))


def outcome(read: ManifestReader, config: bytes, weights: bytes) -> AdapterManifest | None:
    """The manifest, or None for a refusal; anything else is a failure."""
    try:
        manifest = read(config, weights)
    except ManifestError as error:
        assert error.code in str(error)
        json.dumps([finding.message for finding in error.findings])
        return None
    for module in manifest.modules:
        for span in (module.a, module.b):
            assert HEADER_END <= span.begin < span.end <= len(weights)
            assert span.end - span.begin == _size(span)
    return manifest


def _size(span: TensorSpan) -> int:
    return span.num_elements * {"F32": 4, "F16": 2, "BF16": 2}[span.dtype]


def test_the_unchanged_file_is_accepted(fuzzed: ManifestReader) -> None:
    manifest = outcome(fuzzed, CONFIG, WHOLE)
    assert manifest is not None
    assert len(manifest.modules) == 2


@FUZZ
@given(st.lists(st.tuples(st.integers(0, HEADER_END), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes(fuzzed: ManifestReader, changes: list[tuple[int, int]]) -> None:
    content = bytearray(WHOLE)
    for position, byte in changes:
        content[position] = byte
    outcome(fuzzed, CONFIG, bytes(content))


@FUZZ
@given(st.integers(0, len(WHOLE)), st.binary(max_size=40))
def test_cut_off_and_continued(fuzzed: ManifestReader, position: int, tail: bytes) -> None:
    content = WHOLE[:position] + tail
    manifest = outcome(fuzzed, CONFIG, content)
    assert manifest is None or len(content) == len(WHOLE)


@FUZZ
@given(
    st.sampled_from(sorted(TENSORS)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=6,
    ),
    st.sampled_from(["", "dtype", "shape", "data_offsets"]),
)
def test_other_values_in_an_entry(
    fuzzed: ManifestReader, name: str, value: object, field: str
) -> None:
    header = header_of(TENSORS)
    if field:
        header[name][field] = value
    else:
        header[name] = value
    outcome(fuzzed, CONFIG, safetensors_bytes(TENSORS, header))


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes(fuzzed: ManifestReader, content: bytes) -> None:
    assert outcome(fuzzed, CONFIG, content) is None
    assert outcome(fuzzed, content, WHOLE) is None


@FUZZ
@given(
    st.sampled_from(
        sorted({*plain_config(), "rank_pattern", "alpha_pattern", "layers_pattern", "auto_mapping"})
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    ),
)
def test_other_values_in_the_configuration(
    fuzzed: ManifestReader, name: str, value: object
) -> None:
    config = json.dumps({**json.loads(CONFIG), name: value}).encode()
    outcome(fuzzed, config, WHOLE)
