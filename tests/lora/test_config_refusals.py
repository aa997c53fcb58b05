"""A configuration that cannot be served exactly is refused, by the field that says so."""

from __future__ import annotations

import json

import pytest

from lora.manifest import ManifestLimits
from tests.builders.adapters import (
    ATTENTION,
    BIASED_BASE,
    ManifestReader,
    lora_tensors,
    plain_config,
    without,
)
from tests.builders.refusals import refused
from tests.builders.refused_adapters import (
    OTHER_METHODS,
    OTHER_STARTS,
    OTHER_TASKS,
    REFUSED_FIELDS,
)

PLAIN = json.dumps(plain_config())


def spliced(field: str) -> bytes:
    """The plain configuration with a field written as given, legal JSON or not."""
    return (PLAIN[:-1] + f", {field}}}").encode()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"\xef\xbb\xbf" + PLAIN.encode(), id="byte order mark"),
        pytest.param(PLAIN.encode("utf-16"), id="UTF-16"),
        pytest.param(b'{"a": "\xff"}', id="not UTF-8"),
        pytest.param(PLAIN.encode() + b" " * (256 << 10), id="too long"),
        pytest.param(b"[" * 100_000, id="depth bomb"),
        pytest.param(b'{"a":' * 100_000, id="depth bomb of objects"),
        pytest.param(spliced('"x": ' + "[" * 40 + "]" * 40), id="deep and closed"),
        pytest.param(spliced('"lora_dropout": NaN'), id="NaN"),
        pytest.param(spliced('"lora_dropout": -Infinity'), id="infinity"),
        pytest.param(spliced('"lora_dropout": 1e999'), id="overflowing float"),
        pytest.param(spliced('"lora_dropout": ' + "9" * 5000), id="5,000 digits"),
        pytest.param(spliced('"lora_dropout": ' + "9" * 20), id="20 digits"),
        pytest.param(PLAIN.encode() + b"{}", id="two documents"),
    ],
)
def test_not_plain_json(read: ManifestReader, content: bytes) -> None:
    with refused("config_json_invalid"):
        read(content)


def test_a_field_twice(read: ManifestReader) -> None:
    with refused("config_duplicate_key", param="r"):
        read(spliced('"r": 4'))
    with refused("config_duplicate_key"):
        read(spliced('"alpha_pattern": {"q_proj": 1, "q_proj": 2}'))


@pytest.mark.parametrize("content", [b"[]", b'"LORA"', b"null", b"7"])
def test_not_an_object(read: ManifestReader, content: bytes) -> None:
    with refused("config_schema_invalid"):
        read(content)


@pytest.mark.parametrize("name", OTHER_METHODS)
def test_another_method_than_lora(read: ManifestReader, name: object) -> None:
    with refused("peft_type_unsupported", param="peft_type"):
        read(plain_config(peft_type=name))


@pytest.mark.parametrize("name", OTHER_TASKS)
def test_another_task_than_causal_language_modelling(read: ManifestReader, name: str) -> None:
    with refused("task_type_unsupported", param="task_type"):
        read(plain_config(task_type=name))


@pytest.mark.parametrize("name", OTHER_STARTS)
def test_an_initialisation_that_changed_the_base(read: ManifestReader, name: object) -> None:
    with refused("init_mutates_base", param="init_lora_weights"):
        read(plain_config(init_lora_weights=name))


@pytest.mark.parametrize(("changes", "code", "param"), REFUSED_FIELDS)
def test_refused_by_name(
    read: ManifestReader, changes: dict[str, object], code: str, param: str | None
) -> None:
    with refused(code, param=param):
        read(plain_config(**changes))


def test_the_plain_configuration_that_every_row_changes_is_accepted(read: ManifestReader) -> None:
    assert len(read(plain_config()).modules) == 6


def test_peft_type_missing(read: ManifestReader) -> None:
    with refused("peft_type_unsupported", param="peft_type"):
        read(without(plain_config(), "peft_type"))


@pytest.mark.parametrize("name", ["rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize(
    "key",
    [
        r"(?=q)q_proj",
        r"(?!k)._proj",
        r"(?<=\.)q_proj",
        r"(q)_\1proj",
        r"(?P<a>q)(?P=a)",
        r"(?i)q_proj",
        r"q_proj\Z",
        r"\p{L}_proj",
        r"\Qq_proj\E",
        r"[[:alpha:]]_proj",
        r"a{,2}",
        r"a*+",
        r"(a{1000}){1000}",
        r"(q_proj",
        r"[q",
        "\\",
        "é",
        "q_proj\n",
        "q" * 257,
    ],
)
def test_a_pattern_that_two_languages_do_not_share(
    read: ManifestReader, name: str, key: str
) -> None:
    with refused("pattern_unsupported", param=name):
        read(plain_config(**{name: {key: 8}}))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"rank_pattern": {f"a{i}": 8 for i in range(513)}}, "rank_pattern"),
        ({"alpha_pattern": {f"a{i}": 8 for i in range(513)}}, "alpha_pattern"),
        ({"target_modules": r".*(?=q)q_proj"}, "target_modules"),
        ({"target_modules": r"(.)\1_proj"}, "target_modules"),
        ({"target_modules": r".*(?!q_proj)[qv]_proj"}, "target_modules"),
        ({"target_modules": r".*(?!x)*[qv]_proj"}, "target_modules"),
        ({"target_modules": r".*(?!(?=x))[qv]_proj"}, "target_modules"),
        ({"target_modules": r".*(?!x"}, "target_modules"),
        ({"target_modules": "x" * 513}, "target_modules"),
        ({"target_modules": ["x" * 257]}, "target_modules"),
        ({"exclude_modules": r"(?<!x)q_proj"}, "exclude_modules"),
        ({"layers_to_transform": [0], "layers_pattern": r"(?P<idx>layers)"}, "layers_pattern"),
        ({"layers_to_transform": [0], "layers_pattern": ["(?=l)layers"]}, "layers_pattern"),
    ],
)
def test_a_pattern_that_is_too_much(
    read: ManifestReader, changes: dict[str, object], param: str
) -> None:
    with refused("pattern_unsupported", param=param):
        read(plain_config(**changes))


def test_another_base_that_is_known_here(read: ManifestReader) -> None:
    config = plain_config(base_model_name_or_path="meta/Llama-3-8B/")
    with refused("base_model_mismatch", param="base_model_name_or_path"):
        read(config, known_bases=["meta/llama-3-8b", "tenfold/tiny"])
    read(config, known_bases=["tenfold/tiny"])


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_trained_biases_that_the_save_lost(read: ManifestReader, bias: str) -> None:
    """PEFT 0.19.1 did."""
    with refused("tensor_missing"):
        read(plain_config(bias=bias), base=BIASED_BASE)


def test_every_wrong_field_is_listed(read: ManifestReader) -> None:
    config = plain_config(
        use_qalora=True, modules_to_save=["mlp"], r=0, task_type="SEQ_CLS", next_thing=1
    )
    with refused("rank_invalid") as refusal:
        read(config)
    assert refusal.codes == {
        "rank_invalid",
        "task_type_unsupported",
        "variant_unsupported",
        "modules_to_save_unsupported",
        "config_unknown_key",
    }


def test_limits_are_settings(read: ManifestReader) -> None:
    tensors = lora_tensors(ATTENTION, rank=16)
    read(plain_config(r=16), tensors, limits=ManifestLimits(max_rank=16))
    with refused("rank_too_large"):
        read(plain_config(r=16), tensors, limits=ManifestLimits(max_rank=15))
