"""The load that servers are compared at: who asks what, and the adapters that are asked for.

Knows nothing of the servers. Invariant: the same seed makes the same prompts and adapters, and
every server is given the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

RANKS = (8, 16, 32)
TARGETS = (
    "all-linear",
    ["q_proj", "v_proj"],
    ["q_proj", "k_proj", "v_proj", "o_proj"],
    ["gate_proj", "up_proj", "down_proj"],
)


@dataclass(frozen=True, slots=True)
class Served:
    """One turn of a server: seconds, and the tokens it answered to each request."""

    seconds: float
    answers: list[list[int]]


Server = Callable[[], Served]


@dataclass(frozen=True, slots=True)
class Workload:
    """Every stream asks `rounds` times, each time for another adapter than its neighbours."""

    streams: int
    num_adapters: int
    prompt_tokens: int
    output_tokens: int
    rounds: int
    seed: int
    vocab_size: int = 49152

    @property
    def num_requests(self) -> int:
        return self.rounds * self.streams

    @property
    def total_output_tokens(self) -> int:
        return self.num_requests * self.output_tokens

    def prompts(self) -> list[list[int]]:
        """[num_requests][prompt_tokens]; request i asks for adapter i % num_adapters."""
        rng = random.Random(self.seed)
        return [
            [rng.randrange(self.vocab_size) for _ in range(self.prompt_tokens)]
            for _ in range(self.num_requests)
        ]


def load_base(base: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # So that every answer has its full length.
    return model.eval()


def adapter_name(index: int) -> str:
    return f"adapter-{index}"


def write_adapters(base: Path, folder: Path, count: int, seed: int) -> list[Path]:
    """`count` random PEFT adapters, ranks and targets in turn, that do change the output."""
    torch.manual_seed(seed)
    model: Any = load_base(base)
    for index in range(count):
        config = _lora_config(index)
        if index == 0:
            model = get_peft_model(model, config, adapter_name=adapter_name(index))
        else:
            model.add_adapter(adapter_name(index), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(str(folder), save_embedding_layers=False)
    return [folder / adapter_name(index) for index in range(count)]


def _lora_config(index: int) -> LoraConfig:
    rank = RANKS[index % len(RANKS)]
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank,
        target_modules=TARGETS[index % len(TARGETS)],
    )
