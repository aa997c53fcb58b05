"""The head of a tied base is tied to the embedding where PEFT ties it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builders.adapters import (
    EMBEDDING_MATRICES,
    HEAD,
    TINY_BASE,
    WHOLE,
    ManifestReader,
    lora_tensors,
    plain_config,
    zeros,
)
from tests.builders.refusals import refused

UNTIED = replace(TINY_BASE, tie_word_embeddings=False)
PAIR = {(-1, "embed_tokens"), (-1, "lm_head")}


def test_a_tie_that_is_kept_needs_both(read: ManifestReader) -> None:
    config = plain_config(modules_to_save=["embed_tokens"], ensure_weight_tying=True)
    assert len(read(config, lora_tensors() | WHOLE).overrides) == 2
    one = lora_tensors() | {f"{HEAD}embed_tokens.weight": zeros((128, 64))}
    with refused("tensor_missing"):
        read(config, one)
    assert len(read(config, one, base=UNTIED).overrides) == 1


def test_a_tie_of_whole_modules_is_made_by_either_name(read: ManifestReader) -> None:
    """PEFT adds the embedding; what ends in the text of a name but is no name ties nothing."""
    for name in ("lm_head", "model.embed_tokens"):
        config = plain_config(modules_to_save=[name], ensure_weight_tying=True)
        manifest = read(config, lora_tensors() | WHOLE)
        assert {each.key for each in manifest.overrides} == PAIR
        assert len(manifest.tied) == 1
    config = plain_config(modules_to_save=["tokens"], ensure_weight_tying=True)
    one = lora_tensors() | {f"{HEAD}embed_tokens.weight": zeros((128, 64))}
    manifest = read(config, one)
    assert (len(manifest.overrides), manifest.tied) == (1, ())


@pytest.mark.parametrize(
    ("target_modules", "is_tied"),
    [
        (["q_proj", "v_proj", "embed_tokens"], True),
        (["q_proj", "v_proj", "lm_head"], True),
        (r".*[qv]_proj|.*embed_tokens", True),
        (r".*[qv]_proj|lm_head", True),
        (r".*[qv]_proj|model\.embed_tokens", False),
    ],
)
def test_a_tie_of_matrices_is_made_where_peft_makes_it(
    read: ManifestReader, target_modules: object, is_tied: bool
) -> None:
    """A regex is asked about the bare names, which a whole path does not match."""
    one = lora_tensors() | EMBEDDING_MATRICES
    both = one | lora_tensors(["lm_head"])
    config = plain_config(target_modules=target_modules, ensure_weight_tying=True)
    manifest = read(config, both if is_tied else one)
    assert len(manifest.tied) == (2 if is_tied else 0)
    with refused("tensor_missing" if is_tied else "tensor_unexpected"):
        read(config, one if is_tied else both)


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj", "v_proj", "lm_head"], "exclude_modules": ["embed_tokens"]},
        {"target_modules": ["q_proj", "v_proj", "lm_head"], "modules_to_save": ["lm_head"]},
        {"target_modules": r".*[qv]_proj|.*head", "modules_to_save": ["embed_tokens"]},
    ],
)
def test_a_head_is_not_tied_to_an_embedding_that_is_trained_otherwise(
    read: ManifestReader, changes: dict[str, object]
) -> None:
    with refused("target_unsupported", param="ensure_weight_tying"):
        read(plain_config(ensure_weight_tying=True, **changes))
