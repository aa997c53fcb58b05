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


# Each row: the changed fields, the code, and the field that is blamed.
ROWS: list[tuple[dict[str, object], str, str | None]] = [
    # C6, C7: ranks and scales
    ({"r": 0}, "rank_invalid", "r"),
    ({"r": -1}, "rank_invalid", "r"),
    ({"r": 8.0}, "rank_invalid", "r"),
    ({"r": "8"}, "rank_invalid", "r"),
    ({"r": True}, "rank_invalid", "r"),
    ({"r": None}, "rank_invalid", "r"),
    ({"rank_pattern": {"v_proj": 0}}, "rank_invalid", "rank_pattern.v_proj"),
    ({"r": 1025}, "rank_too_large", "r"),
    ({"rank_pattern": {"v_proj": 1025}}, "rank_too_large", "rank_pattern.v_proj"),
    ({"lora_alpha": "16"}, "scaling_invalid", "lora_alpha"),
    ({"lora_alpha": True}, "scaling_invalid", "lora_alpha"),
    ({"lora_alpha": None}, "scaling_invalid", "lora_alpha"),
    ({"alpha_pattern": {"v_proj": [1]}}, "scaling_invalid", "alpha_pattern.v_proj"),
    ({"lora_alpha": 80_001}, "scaling_invalid", None),
    ({"lora_alpha": -80_001}, "scaling_invalid", None),
    ({"lora_alpha": 1e300}, "scaling_invalid", None),
    ({"alpha_pattern": {"v_proj": 1e9}}, "scaling_invalid", None),
    # C10, C11: variants that look like plain LoRA in the file
    ({"use_dora": True, "lora_bias": True}, "variant_unsupported", "lora_bias"),
    ({"use_dora": 1}, "config_schema_invalid", "use_dora"),
    ({"use_qalora": True}, "variant_unsupported", "use_qalora"),
    ({"use_bdlora": {"nblocks": 2}}, "variant_unsupported", "use_bdlora"),
    ({"alora_invocation_tokens": [5]}, "variant_unsupported", "alora_invocation_tokens"),
    ({"arrow_config": {"top_k": 3}}, "variant_unsupported", "arrow_config"),
    ({"monteclora_config": {"num_samples": 8}}, "variant_unsupported", "monteclora_config"),
    ({"kasa_config": {"beta": 1e-4}}, "variant_unsupported", "kasa_config"),
    # C12: initialisations that changed the base
    ({"loftq_config": {"loftq_bits": 4}}, "init_mutates_base", "loftq_config"),
    # C13 to C18
    ({"lora_bias": "yes"}, "config_schema_invalid", "lora_bias"),
    ({"bias": "some"}, "config_schema_invalid", "bias"),
    ({"modules_to_save": ["score"]}, "modules_to_save_unsupported", "score"),
    ({"modules_to_save": ["lm_head", "mlp"]}, "modules_to_save_unsupported", "mlp"),
    ({"modules_to_save": ["proj"]}, "modules_to_save_unsupported", "proj"),
    ({"modules_to_save": ["down_proj"]}, "modules_to_save_unsupported", "down_proj"),
    ({"modules_to_save": ["model"]}, "modules_to_save_unsupported", "model"),
    ({"modules_to_save": [".*"]}, "modules_to_save_unsupported", ".*"),
    ({"modules_to_save": [""]}, "modules_to_save_unsupported", ""),
    ({"modules_to_save": "lm_head"}, "config_schema_invalid", "modules_to_save"),
    ({"modules_to_save": [7]}, "config_schema_invalid", "modules_to_save"),
    ({"trainable_token_indices": [5, 5]}, "config_schema_invalid", "trainable_token_indices"),
    ({"trainable_token_indices": [-1]}, "config_schema_invalid", "trainable_token_indices"),
    ({"trainable_token_indices": [True]}, "config_schema_invalid", "trainable_token_indices"),
    ({"trainable_token_indices": 5}, "config_schema_invalid", "trainable_token_indices"),
    (
        {"trainable_token_indices": {"q_proj": [5]}},
        "trainable_tokens_unsupported",
        "q_proj",
    ),
    (
        {"trainable_token_indices": [128]},
        "vocab_resized_unsupported",
        "trainable_token_indices",
    ),
    ({"ensure_weight_tying": "yes"}, "config_schema_invalid", "ensure_weight_tying"),
    ({"layer_replication": [[0, 2]]}, "layer_replication_unsupported", "layer_replication"),
    ({"target_parameters": ["experts.down"]}, "target_unknown", "target_parameters"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out_mismatch", "fan_in_fan_out"),
    # C22, C23: targets
    ({"target_modules": ["Wqkv"]}, "target_unknown", "Wqkv"),
    ({"target_modules": ["qkv_proj", "q_proj", "v_proj"]}, "target_unknown", "qkv_proj"),
    ({"target_modules": ["proj"]}, "target_unknown", "proj"),
    ({"target_modules": ["self_attn"]}, "target_unknown", "self_attn"),
    ({"target_modules": r".*\.c_attn"}, "target_unknown", "target_modules"),
    ({"target_modules": "q_proj"}, "target_unknown", "target_modules"),
    ({"target_modules": ["q_proj", "v_proj", "norm"]}, "target_unsupported", "norm"),
    ({"target_modules": r".*[qv]_proj|.*\.norm"}, "target_unsupported", "model.norm"),
    ({"exclude_modules": ["q_proj", "v_proj"]}, "target_unknown", "target_modules"),
    ({"layers_to_transform": [3]}, "layer_out_of_range", "3"),
    ({"layers_to_transform": -1}, "layer_out_of_range", "-1"),
    # wrong types
    ({"target_modules": 7}, "config_schema_invalid", "target_modules"),
    ({"target_modules": ["q_proj", 7]}, "config_schema_invalid", "target_modules"),
    ({"exclude_modules": {"a": 1}}, "config_schema_invalid", "exclude_modules"),
    ({"layers_to_transform": ["0"]}, "config_schema_invalid", "layers_to_transform"),
    ({"layers_to_transform": [True]}, "config_schema_invalid", "layers_to_transform"),
    ({"layers_pattern": "layers"}, "config_schema_invalid", "layers_pattern"),
    (
        {"target_modules": ".*[qv]_proj", "layers_to_transform": [0]},
        "config_schema_invalid",
        "layers_to_transform",
    ),
    ({"rank_pattern": ["q_proj"]}, "config_schema_invalid", "rank_pattern"),
    ({"use_rslora": "yes"}, "config_schema_invalid", "use_rslora"),
    ({"auto_mapping": "x"}, "config_schema_invalid", "auto_mapping"),
    ({"base_model_name_or_path": 7}, "config_schema_invalid", "base_model_name_or_path"),
    # C25, C26: fields that name code to import
    ({"megatron_config": {"a": 1}}, "config_key_forbidden", "megatron_config"),
    ({"megatron_core": "os"}, "config_key_forbidden", "megatron_core"),
    (
        {"auto_mapping": {"parent_library": "os", "base_model_class": "system"}},
        "config_key_forbidden",
        "auto_mapping.parent_library",
    ),
    (
        {"auto_mapping": {"parent_library": "transformers_evil.x"}},
        "config_key_forbidden",
        "auto_mapping.parent_library",
    ),
    (
        {"auto_mapping": {"parent_library": 7}},
        "config_key_forbidden",
        "auto_mapping.parent_library",
    ),
    # C27: what a later PEFT may add
    ({"use_next_year": True}, "config_unknown_key", "use_next_year"),
    ({"next_config": {"a": 1}}, "config_unknown_key", "next_config"),
    ({"next_number": 0}, "config_unknown_key", "next_number"),
    # C29: names are compared and never followed
    ({"base_model_name_or_path": "x" * 1_000_000}, "config_json_invalid", None),
    ({"base_model_name_or_path": "x" * 1025}, "config_schema_invalid", "base_model_name_or_path"),
    # C30: MLX, and half MLX
    ({"lora_parameters": {"rank": 8, "scale": 20.0}}, "format_mlx_unsupported", "peft_type"),
    ({"fine_tune_type": "lora"}, "format_mlx_unsupported", "lora_parameters"),
]


OTHER_METHODS = (
    *("IA3", "LOHA", "LOKR", "OFT", "BOFT", "ADALORA", "VERA", "MISS", "RANDLORA", "XLORA"),
    *("PREFIX_TUNING", "P_TUNING", "PROMPT_TUNING", "lora", None, ["LORA"]),
)
OTHER_TASKS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION", "SEQ_2_SEQ_LM")
OTHER_STARTS = ("pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga", "x", 1)


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


@pytest.mark.parametrize(("changes", "code", "param"), ROWS)
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
