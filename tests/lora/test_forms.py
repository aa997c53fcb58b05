"""Every form that an adapter may have beside A and B is accounted for, tensor by tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lora.manifest import AdapterManifest, ManifestLimits
from tests.builders.adapters import (
    ATTENTION,
    BIASED_BASE,
    EMBEDDING_MATRICES,
    HEAD,
    TINY_BASE,
    WHOLE,
    ManifestReader,
    Tensors,
    lora_tensors,
    plain_config,
    stored,
    zeros,
)
from tests.builders.refusals import refused, warnings_of

MODEL = HEAD.removesuffix("model.")
UNTIED = replace(TINY_BASE, tie_word_embeddings=False)
EMBEDDING, LM_HEAD = (-1, "embed_tokens"), (-1, "lm_head")


def vectors(ending: str, widths: tuple[int, int] = (64, 32)) -> Tensors:
    """One vector for each module that the plain adapter adapts."""
    return {
        f"{HEAD}layers.{layer}.{module}.{ending}": stored(np.ones(width, np.float32))
        for layer in range(3)
        for module, width in zip(ATTENTION, widths, strict=True)
    }


def overrides_of(manifest: AdapterManifest) -> dict[tuple[tuple[int, str], str], tuple[int, ...]]:
    return {(each.key, each.what): each.token_ids for each in manifest.overrides}


@pytest.mark.parametrize(
    "ending",
    ["", ".weight", ".default", ".default.weight"],
)
def test_a_magnitude_for_every_adapted_module(read: ManifestReader, ending: str) -> None:
    tensors = {
        name.replace("lora_A.weight", f"lora_A{named}.weight").replace(
            "lora_B.weight", f"lora_B{named}.weight"
        ): tensor
        for named in [".default" if "default" in ending else ""]
        for name, tensor in lora_tensors().items()
    }
    tensors |= vectors(f"lora_magnitude_vector{ending}")
    manifest = read(plain_config(use_dora=True), tensors)
    assert all(module.magnitude is not None for module in manifest.modules)
    gone = dict(list(tensors.items())[:-1])
    with refused("tensor_missing"):
        read(plain_config(use_dora=True), gone)
    with refused("tensor_unexpected"):
        read(plain_config(), tensors)


def test_a_bias_of_b_for_every_adapted_module(read: ManifestReader) -> None:
    tensors = lora_tensors() | vectors("lora_B.bias")
    manifest = read(plain_config(lora_bias=True), tensors)
    assert all(module.bias is not None for module in manifest.modules)
    with refused("tensor_missing"):
        read(plain_config(lora_bias=True))
    with refused("shape_mismatch"):
        read(plain_config(lora_bias=True), lora_tensors() | vectors("lora_B.bias", (64, 64)))


def test_biases_that_peft_saves(read: ManifestReader) -> None:
    adapted = vectors("base_layer.bias")
    others = {
        f"{HEAD}layers.{layer}.self_attn.{name}.bias": zeros((width,))
        for layer in range(3)
        for name, width in (("k_proj", 32), ("o_proj", 64))
    }
    manifest = read(plain_config(bias="lora_only"), lora_tensors() | adapted, base=BIASED_BASE)
    assert len(manifest.overrides) == 6
    everything = lora_tensors() | adapted | others
    manifest = read(plain_config(bias="all"), everything, base=BIASED_BASE)
    assert len(manifest.overrides) == 12
    for bias in ("lora_only", "none"):
        with refused("tensor_unexpected"):
            read(plain_config(bias=bias), everything, base=BIASED_BASE)
    with refused("bias_unsupported"):
        read(plain_config(bias="all"), everything)


def test_whole_modules_by_the_ends_of_their_paths(read: ManifestReader) -> None:
    norms = {
        f"{HEAD}{name}.weight": zeros((64,))
        for name in (
            "norm",
            *(f"layers.{i}.{at}_layernorm" for i in range(3) for at in ("input", "post_attention")),
        )
    }
    manifest = read(plain_config(modules_to_save=["norm"]), lora_tensors() | norms)
    assert len(manifest.overrides) == 7
    config = plain_config(modules_to_save=["lm_head", "embed_tokens"])
    manifest = read(config, lora_tensors() | WHOLE)
    assert overrides_of(manifest) == {(EMBEDDING, "weight"): (), (LM_HEAD, "weight"): ()}
    assert manifest.copies == ()
    for gone in WHOLE:
        with refused("tensor_missing"):
            read(config, lora_tensors() | {k: v for k, v in WHOLE.items() if k != gone})
    with refused("modules_to_save_unsupported"):
        read(plain_config(), lora_tensors() | norms)


@pytest.mark.parametrize("ending", ["modules_to_save.weight", "modules_to_save.default.weight"])
def test_whole_modules_under_older_names(read: ManifestReader, ending: str) -> None:
    tensors = lora_tensors() | {f"{MODEL}lm_head.{ending}": zeros((128, 64))}
    manifest = read(plain_config(modules_to_save=["lm_head"]), tensors)
    assert overrides_of(manifest) == {(LM_HEAD, "weight"): ()}


def test_embeddings_that_were_saved_and_not_trained_are_copies(read: ManifestReader) -> None:
    manifest = read(tensors=lora_tensors() | WHOLE)
    assert manifest.overrides == () and [copy.key for copy in manifest.copies] == [
        EMBEDDING,
        LM_HEAD,
    ]


def test_rows_of_trained_tokens(read: ManifestReader) -> None:
    rows = {f"{HEAD}embed_tokens.token_adapter.trainable_tokens_delta": zeros((2, 64))}
    config = plain_config(trainable_token_indices=[9, 5])
    tied = read(config, lora_tensors() | rows)
    assert overrides_of(tied) == {(EMBEDDING, "rows"): (9, 5), (LM_HEAD, "rows"): (9, 5)}
    untied = read(config, lora_tensors() | rows, base=UNTIED)
    assert overrides_of(untied) == {(EMBEDDING, "rows"): (9, 5)}
    with refused("config_schema_invalid", param="trainable_token_indices"):
        read(plain_config(trainable_token_indices=[]))
    for changes, code in (
        ({"trainable_token_indices": [9]}, "shape_mismatch"),
        ({"trainable_token_indices": None}, "trainable_tokens_unsupported"),
        ({"trainable_token_indices": {"lm_head": [9, 5]}}, "trainable_tokens_unsupported"),
    ):
        with refused(code):
            read(plain_config(**changes), lora_tensors() | rows)


def test_a_head_with_tokens_of_its_own_on_a_tied_base(read: ManifestReader) -> None:
    rows = {
        f"{path}.token_adapter.trainable_tokens_delta": zeros((size, 64))
        for path, size in ((f"{HEAD}embed_tokens", 2), (f"{MODEL}lm_head", 1))
    }
    config = plain_config(trainable_token_indices={"embed_tokens": [9, 5], "lm_head": [3]})
    manifest = read(config, lora_tensors() | rows)
    assert overrides_of(manifest) == {(EMBEDDING, "rows"): (9, 5), (LM_HEAD, "rows"): (3,)}
    with refused("trainable_tokens_unsupported", param="ensure_weight_tying"):
        read({**config, "ensure_weight_tying": True}, lora_tensors() | rows)
    read({**config, "ensure_weight_tying": True}, lora_tensors() | rows, base=UNTIED)


def test_a_module_is_trained_in_one_way(read: ManifestReader) -> None:
    rows = {f"{HEAD}embed_tokens.token_adapter.trainable_tokens_delta": zeros((2, 64))}
    head = lora_tensors([*ATTENTION, "lm_head"])
    config = plain_config(
        trainable_token_indices=[9, 5], target_modules=["q_proj", "v_proj", "lm_head"]
    )
    read(config, head | rows, base=UNTIED)
    with refused("trainable_tokens_unsupported"):
        read(config, head | rows)


def test_what_whole_modules_may_hold_is_a_limit(read: ManifestReader) -> None:
    config = plain_config(modules_to_save=["lm_head", "embed_tokens"])
    tensors = lora_tensors() | WHOLE
    read(config, tensors, limits=ManifestLimits(max_override_bytes=2 * 128 * 64 * 4))
    with refused("modules_to_save_not_allowed") as refusal:
        read(config, tensors, limits=ManifestLimits(max_override_bytes=2 * 128 * 64 * 4 - 1))
    (finding,) = [each for each in refusal.findings if each.severity == "error"]
    assert (finding.expected, finding.actual) == ("65535", "65536")
    read(limits=ManifestLimits(max_override_bytes=0))


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("model.", ""),
        ("base_model.model.", "base_model.model."),
        (f"{HEAD}language_model.", MODEL),
        ("base_model.model.language_model.model.", "base_model.model.language_model."),
        (f"_orig_mod.{HEAD}", f"_orig_mod.{MODEL}"),
        (f"module.{HEAD}", f"module.{MODEL}"),
        (f"{MODEL}{HEAD}", f"{MODEL}{MODEL}"),
    ],
)
def test_wrappers_are_taken_off_every_form(read: ManifestReader, body: str, head: str) -> None:
    tensors = {
        name.replace(HEAD, body): tensor
        for name, tensor in (lora_tensors() | vectors("lora_magnitude_vector")).items()
    }
    tensors |= {
        f"{body}embed_tokens.weight": zeros((128, 64)),
        f"{head}lm_head.weight": zeros((128, 64)),
    }
    config = plain_config(use_dora=True, modules_to_save=["lm_head", "embed_tokens"])
    manifest = read(config, tensors)
    assert warnings_of(manifest) == {"keys_remapped"}
    stray = {name.replace(head + "lm_head", f"x.{head}lm_head"): t for name, t in tensors.items()}
    with refused("tensor_unexpected"):
        read(config, stray)


def test_only_lora_matrices_make_an_adapter(read: ManifestReader) -> None:
    config = plain_config(modules_to_save=["lm_head", "embed_tokens"])
    with refused("adapter_empty"):
        read(config, WHOLE)


def fused_tensors() -> Tensors:
    tensors: Tensors = {}
    for layer in range(3):
        for module, width in (("self_attn.qkv_proj", 128), ("mlp.gate_up_proj", 192)):
            path = f"{HEAD}layers.{layer}.{module}"
            tensors |= {
                f"{path}.lora_A.weight": zeros((8, 64)),
                f"{path}.lora_B.weight": zeros((width, 8)),
            }
    return tensors


def test_fused_projections_stand_for_their_parts(read: ManifestReader) -> None:
    config = plain_config(target_modules=["qkv_proj", "gate_up_proj"])
    manifest = read(config, fused_tensors())
    assert {module.module for module in manifest.modules} == {
        "self_attn.qkv_proj",
        "mlp.gate_up_proj",
    }
    assert warnings_of(manifest) == {"projections_split"}
    with refused("tensor_missing"):
        read(plain_config(target_modules="all-linear"), fused_tensors())
    with refused("target_unsupported", param="model.layers.0.mlp.activation_fn"):
        read(plain_config(target_modules=".*_proj|.*activation_fn"), fused_tensors())


def test_a_model_has_a_projection_fused_or_apart(read: ManifestReader) -> None:
    both = lora_tensors() | fused_tensors()
    config = plain_config(target_modules=["qkv_proj", "gate_up_proj", "q_proj", "v_proj"])
    with refused("target_unknown"):
        read(config, both)
    with refused("tensor_unexpected"):
        read(plain_config(target_modules=["qkv_proj", "gate_up_proj"]), both)


def test_a_module_is_not_saved_whole_and_adapted(read: ManifestReader) -> None:
    config = plain_config(
        target_modules=["q_proj", "v_proj", "embed_tokens"], modules_to_save=["tokens"]
    )
    with refused("modules_to_save_unsupported", param="embed_tokens"):
        read(config, lora_tensors() | EMBEDDING_MATRICES | WHOLE)
