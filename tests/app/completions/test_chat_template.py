from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
import transformers

from app.completions.chat_template import ChatTemplate, ChatTemplateError
from app.completions.tokenizer import Tokenizer

GEMMA_LIKE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{{ m['content'] }}{% endfor %}"
)
HI = [{"role": "user", "content": "hi"}]


def render(source: str, *, special: dict[str, str] | None = None, **variables: object) -> str:
    template = ChatTemplate(source, special or {}, now=lambda: datetime(2026, 11, 29))
    return template.render(HI, variables)


def test_a_conversation_is_encoded_as_transformers_does(
    tokenizer: Tokenizer, demo_base: Path
) -> None:
    oracle = transformers.AutoTokenizer.from_pretrained(demo_base)
    conversation = [
        {"role": "system", "content": "Be brief.\n"},
        {"role": "user", "content": "What is 12 + 30? <|im_end|> 삼겹살"},
        {"role": "assistant", "content": "42"},
        {"role": "user", "content": "  Thanks! \U0001f642"},
    ]
    assert tokenizer.chat_template is not None
    for messages in (conversation, conversation[1:], HI):
        ids = tokenizer.encode_chat(tokenizer.chat_template.render(messages, {}))
        expected = oracle.apply_chat_template(messages, add_generation_prompt=True)
        assert ids == expected["input_ids"]


def test_a_plain_prompt_is_encoded_as_transformers_does(
    tokenizer: Tokenizer, demo_base: Path
) -> None:
    oracle = transformers.AutoTokenizer.from_pretrained(demo_base)
    for text in ("The quick brown fox", "1234 + 5 =", "\n\n  def f():\n\treturn 삼"):
        assert tokenizer.encode_prompt(text) == oracle(text)["input_ids"]


def test_blocks_are_trimmed_and_the_generation_tag_loop_controls_and_tojson_work() -> None:
    source = """{% for i in [1, 2, 3] %}
    {% if i == 2 %}{% continue %}{% endif %}
{{ i }}
{% endfor %}
{% generation %}{{ messages[0]['content'] }}{% endgeneration %}{{ {"a": "<é>"} | tojson }}"""
    assert render(source) == '1\n3\nhi{"a": "<é>"}'


def test_special_tokens_the_date_and_further_variables_are_known_to_the_template() -> None:
    source = "{{ bos_token }} {{ strftime_now('%Y-%m-%d') }} {{ add_generation_prompt }} {{ mood }}"
    assert render(source, special={"bos_token": "<s>"}, mood="calm") == "<s> 2026-11-29 True calm"


def test_what_the_template_raises_is_its_own_message() -> None:
    template = ChatTemplate(GEMMA_LIKE, {"bos_token": "<bos>"})
    with pytest.raises(ChatTemplateError, match=r"^Conversation roles must alternate"):
        template.render([*HI, *HI], {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0]['content'] + 1 }}",
        "{{ messages[7].content }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_a_template_error(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


def test_a_variable_cannot_replace_the_messages() -> None:
    with pytest.raises(ChatTemplateError, match="messages"):
        ChatTemplate("{{ messages }}", {}).render(HI, {"messages": []})


def test_a_template_that_is_no_jinja_is_refused_when_it_is_read() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{% for %}", {})
