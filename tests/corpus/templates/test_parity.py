"""What the sandbox makes of a conversation is what `transformers` makes of it, to the character."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from app.chat_templates.sandbox import TemplateSandbox, TemplateSource
from app.completions.chat_template import ChatTemplate
from tests.builders.chat_templates import GEMMA, LLAMA, SMOLLM2
from tests.builders.tiny_base import CHAT_TEMPLATE

TEMPLATES = {"the base's own": CHAT_TEMPLATE, "SmolLM2": SMOLLM2, "Llama": LLAMA, "Gemma": GEMMA}
TURNS = [
    {"role": "user", "content": " What is 12 + 30? <é> \U0001f642\n"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "Thanks!\n\n"},
]
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<b> 삼"}}]


@pytest.fixture(scope="module")
def oracle(tiny_base_folder: Path) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tiny_base_folder / "tokenizer.json"),
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
    )


@pytest.mark.parametrize("name", TEMPLATES)
async def test_a_conversation_is_rendered_as_transformers_does(oracle: Any, name: str) -> None:
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    sandbox = TemplateSandbox(special)
    source = TemplateSource("ten_a", name, TEMPLATES[name])
    for messages, variables in (
        (TURNS[:1], {}),
        (TURNS, {"tools": TOOLS}),
        ([SYSTEM, *TURNS], {"date_string": "26 Jul 2024"}),
    ):
        if name == "Gemma" and SYSTEM in messages:
            continue
        expected = oracle.apply_chat_template(
            messages,
            chat_template=TEMPLATES[name],
            tokenize=False,
            add_generation_prompt=True,
            **variables,
        )
        answer = await sandbox.render(source, messages, variables, 8192)
        assert answer.text == expected
        assert ChatTemplate(TEMPLATES[name], special).render(messages, variables) == expected
    await sandbox.close()


async def test_control_another_template_gives_another_prompt(oracle: Any) -> None:
    prompts = {
        oracle.apply_chat_template(
            TURNS, chat_template=text, tokenize=False, add_generation_prompt=True
        )
        for text in TEMPLATES.values()
    }
    assert len(prompts) == len(TEMPLATES)
