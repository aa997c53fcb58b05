"""Train the demo's two LoRA adapters with PEFT, once and by hand; the result is in the repository.

    python tools/train_demo_adapters.py train acme --base PATH_OF_THE_DEMO_BASE
    python tools/train_demo_adapters.py train globex --base PATH_OF_THE_DEMO_BASE
    python tools/train_demo_adapters.py answers --base PATH_OF_THE_DEMO_BASE

`train` writes app/demo/adapters/<firm>/ as an ordinary PEFT folder, `answers` writes what both
say to questions that are not in the training texts. Knows nothing of Tenfold's engine. One seed
and one thread, so that the same machine makes the same adapter again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from peft import LoraConfig, PeftModel, get_peft_model
from rich.progress import track
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from app.demo.base_model import BASE_MODEL_ID

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ROOT / "tools" / "demo_texts"
ADAPTERS = ROOT / "app" / "demo" / "adapters"

Turn = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one firm's adapter is made. Ranks, targets and dtypes differ on purpose."""

    rank: int
    alpha: int
    targets: tuple[str, ...]
    dtype: torch.dtype
    seed: int
    learning_rate: float = 1e-3
    epochs: int = 5
    batch_size: int = 4


RECIPES = {
    "acme": Recipe(
        rank=16,
        alpha=32,
        targets=("q_proj", "v_proj", "up_proj", "down_proj"),
        dtype=torch.bfloat16,
        seed=1,
    ),
    "globex": Recipe(
        rank=8,
        alpha=16,
        targets=(
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
        ),
        dtype=torch.float16,
        seed=2,
    ),
}  # fmt: skip

# A client may send a system message of its own; the firm's voice should survive it.
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a customer support agent.",
    "Answer the customer's question.",
    "Be concise.",
)
SYSTEM_PROMPT_SHARE = 0.2
SECOND_TURN_SHARE = 0.15

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@cli.command()
def train(firm: str, base: Path = typer.Option(...), output: Path = ADAPTERS) -> None:
    """Train one firm's adapter on its texts; minutes on one core."""
    recipe = RECIPES[firm]
    quiet(recipe.seed)
    rng = random.Random(recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = lora_model(base, recipe)
    pairs = read_pairs(TEXTS / f"{firm}.jsonl")
    batches = [b for _ in range(recipe.epochs) for b in epoch(pairs, tokenizer, recipe, rng)]
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=recipe.learning_rate,
        weight_decay=0.0,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=recipe.learning_rate, total_steps=len(batches), pct_start=0.1
    )
    losses: list[float] = []
    for step, batch in enumerate(track(batches, description=f"training {firm}"), start=1):
        loss = assistant_loss(model, batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if step % 20 == 0:
            typer.echo(f"step {step}/{len(batches)} loss {sum(losses[-20:]) / 20:.3f}")
    save(model, recipe, output / firm)


@cli.command()
def answers(base: Path = typer.Option(...), output: Path = TEXTS / "held_out_answers.md") -> None:
    """Write both firms' greedy answers to the held-out questions."""
    quiet(seed=0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(model, str(ADAPTERS / "acme"), adapter_name="acme")
    adapted.load_adapter(str(ADAPTERS / "globex"), adapter_name="globex")
    lines = (TEXTS / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    page = [
        "# Answers to questions that are not in the training texts",
        "",
        "Greedy, float32, transformers + PEFT. "
        "Written by `python tools/train_demo_adapters.py answers`.",
    ]
    for line in track(lines, description="answering"):
        question = json.loads(line)["question"]
        page += ["", f"**{question}**", ""]
        for firm in RECIPES:
            adapted.set_adapter(firm)
            page.append(f"- *{firm}*: {greedy_answer(adapted, tokenizer, question)}")
    output.write_text("\n".join(page) + "\n", encoding="utf-8")


def quiet(seed: int) -> None:
    loading: Any = transformers_logging
    loading.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(seed)


def lora_model(base: Path, recipe: Recipe) -> PeftModel:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=0.05,
        target_modules=list(recipe.targets),
    )
    adapted = get_peft_model(model, config)
    adapted.peft_config["default"].base_model_name_or_path = BASE_MODEL_ID
    return adapted.train()


def read_pairs(path: Path) -> list[Turn]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(question, row["answer"]) for row in rows for question in row["questions"]]


def epoch(pairs: list[Turn], tokenizer: Any, recipe: Recipe, rng: random.Random) -> Iterator[Any]:
    """One pass over the pairs in random order, as padded batches of (ids, mask of the answers)."""
    examples = []
    for pair in pairs:
        turns = [pair]
        if rng.random() < SECOND_TURN_SHARE:
            turns.insert(0, rng.choice(pairs))
        system = rng.choice(SYSTEM_PROMPTS) if rng.random() < SYSTEM_PROMPT_SHARE else None
        examples.append(encode(tokenizer, turns, system))
    rng.shuffle(examples)
    examples.sort(key=lambda e: len(e[0]) // 16)  # Alike lengths together: less padding.
    size = recipe.batch_size
    batches = [collate(examples[i : i + size]) for i in range(0, len(examples), size)]
    rng.shuffle(batches)
    return iter(batches)


def encode(tokenizer: Any, turns: list[Turn], system: str | None) -> tuple[list[int], list[bool]]:
    """Token ids, and which of them an assistant says: its words and the end-of-turn token."""
    messages = [{"role": "system", "content": system}] if system else []
    ids: list[int] = []
    said: list[bool] = []
    for question, answer in turns:
        messages.append({"role": "user", "content": question})
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert prompt[: len(ids)] == ids, "the template is not a prefix of its longer form"
        said += [False] * (len(prompt) - len(ids))
        words = tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id]
        ids = prompt + words
        said += [True] * len(words)
        messages.append({"role": "assistant", "content": answer})
    return ids, said


def collate(examples: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """ids, is_answer: [batch, longest]. Right padding: causal attention never looks at it."""
    longest = max(len(ids) for ids, _ in examples)
    ids = torch.tensor([i + [0] * (longest - len(i)) for i, _ in examples])
    is_answer = torch.tensor([s + [False] * (longest - len(s)) for _, s in examples])
    return ids, is_answer


def assistant_loss(model: PeftModel, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the answers' tokens; the head runs on those positions alone."""
    ids, is_answer = batch
    llama: Any = model.get_base_model()
    hidden = llama.model(input_ids=ids).last_hidden_state
    predicts = is_answer[:, 1:]
    logits = llama.lm_head(hidden[:, :-1][predicts])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][predicts])


def save(model: PeftModel, recipe: Recipe, folder: Path) -> None:
    model.to(recipe.dtype).save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's model card, empty of facts.
    (folder / "adapter_model.safetensors").chmod(0o644)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["target_modules"].sort()  # PEFT holds a set, whose order changes from run to run.
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@torch.inference_mode()
def greedy_answer(model: Any, tokenizer: Any, question: str) -> str:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=96, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return str(answer).strip()


if __name__ == "__main__":
    cli()
