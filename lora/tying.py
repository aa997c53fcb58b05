"""What `ensure_weight_tying` ties on a base whose head is its embedding, and what is then stored
twice.

Knows nothing of tensors' values. Invariant: the head is tied where PEFT ties it, and nowhere else.

Source: PEFT's BaseTuner._check_tied_modules, LoraModel._add_modules_to_save_to_tie and
_add_targets_to_tie.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from lora.base_spec import BaseSpec
from lora.limits import ManifestLimits
from lora.lora_module import LoraModule
from lora.module_path import EMBEDDINGS
from lora.patterns import PatternError, check_pattern, compile_pattern
from lora.peft_config import PeftConfig
from lora.safetensors_header import TensorSpan
from lora.sites import EMBED, EMBED_TOKENS, HEAD, LM_HEAD


class Tie(Enum):
    """What the head shares with the embedding."""

    NOTHING = "nothing"
    WEIGHT = "weight"
    """Of `modules_to_save`."""
    MATRICES = "matrices"
    """A and B."""


@dataclass(frozen=True, slots=True)
class TiedPair:
    """Two tensors of a file that PEFT reads into one storage, so that the head's numbers stay.

    `is_transposed`: one is the other's transpose.
    """

    embedding: TensorSpan
    head: TensorSpan
    is_transposed: bool


def read_tie(config: PeftConfig, base: BaseSpec, limits: ManifestLimits) -> Tie:
    """PEFT asks the last part of names, and a regex whether it matches that part alone."""
    if not (config.whole.keeps_tied and base.tie_word_embeddings):
        return Tie.NOTHING
    if _names_embedding(config.whole.modules_to_save):
        return Tie.WEIGHT
    targets = config.target_modules
    if isinstance(targets, str):
        is_targeted = _matches_embedding(targets, limits)
    else:
        is_targeted = _names_embedding(targets)
    return Tie.MATRICES if is_targeted else Tie.NOTHING


def tied_pairs(
    tie: Tie, weights: Iterable[tuple[tuple[int, str], TensorSpan]], modules: Iterable[LoraModule]
) -> tuple[TiedPair, ...]:
    """`weights`: the modules that are saved whole; what is missing has been reported."""
    whole = dict(weights)
    if tie is Tie.WEIGHT and whole.keys() >= {EMBED_TOKENS, LM_HEAD}:
        return (TiedPair(whole[EMBED_TOKENS], whole[LM_HEAD], is_transposed=False),)
    adapted = {module.module: module for module in modules}
    if tie is Tie.MATRICES and adapted.keys() >= EMBEDDINGS:
        embedding, head = adapted[EMBED], adapted[HEAD]
        return (TiedPair(embedding.a, head.b, True), TiedPair(embedding.b, head.a, True))
    return ()


def _names_embedding(names: Iterable[str]) -> bool:
    return any(name.rpartition(".")[2] in EMBEDDINGS for name in names)


def _matches_embedding(regex: str, limits: ManifestLimits) -> bool:
    try:
        pattern = compile_pattern(check_pattern(regex, limits.max_regex_chars, EMBEDDINGS))
    except PatternError:  # which the reading of the targets reports
        return False
    return any(pattern.fullmatch(name) is not None for name in EMBEDDINGS)
