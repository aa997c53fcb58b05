"""Whether a template that an adapter brings is one that conversations can be rendered with.

Knows nothing of uploads. Invariant: a template that passes has been rendered, in the process that
renders it later and within the same limits.
"""

from __future__ import annotations

import hashlib

from app.chat_templates.messages import Answer
from app.chat_templates.sandbox import TemplateSandbox, TemplateSource
from app.completions.chat_template import Message
from lora.findings import Finding, Findings
from lora.store import CHAT_TEMPLATE_FILE

MAX_TEMPLATE_BYTES = 64 << 10

_TURNS: list[Message] = [
    {"role": "user", "content": "What is 12 + 30?"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "Thanks!"},
]
_SYSTEM: Message = {"role": "system", "content": "Be brief."}

_PROBLEMS = {
    "too_long": "It makes more text of a small conversation than the base's context holds.",
    "memory": "It takes more memory than it may for a small conversation.",
    "time": "It takes more time than it may for a small conversation.",
}


async def check_template(
    sandbox: TemplateSandbox, owner: str, content: bytes, max_chars: int
) -> tuple[Finding, ...]:
    """What small conversations tell of it: one turn, several, and several after a system message.

    owner: as in `TemplateSource`. max_chars: of what it may make of one. A template that says
    itself that it takes no system message is accepted, with a warning. Raises SandboxError,
    SandboxBusyError.
    """
    findings = Findings(CHAT_TEMPLATE_FILE)
    text = _as_text(findings, content)
    if text is None:
        return findings.all()
    source = TemplateSource(owner, hashlib.sha256(content).hexdigest(), text)
    for messages in (_TURNS[:1], _TURNS):
        answer = await sandbox.render(source, messages, {}, max_chars)
        if problem := _problem(answer):
            findings.refuse("chat_template_invalid", problem)
            return findings.all()
    answer = await sandbox.render(source, [_SYSTEM, *_TURNS], {}, max_chars)
    if answer.problem == "refused":
        findings.warn("chat_template_without_system", f"It says: {answer.message}")
    elif problem := _problem(answer):
        findings.refuse("chat_template_invalid", f"With a system message: {problem}")
    return findings.all()


def _as_text(findings: Findings, content: bytes) -> str | None:
    if len(content) > MAX_TEMPLATE_BYTES:
        findings.refuse("chat_template_invalid", f"It has more than {MAX_TEMPLATE_BYTES} bytes.")
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        findings.refuse("chat_template_invalid", "It is not text in UTF-8.")
        return None


def _problem(answer: Answer) -> str | None:
    if answer.text is None:
        shown = _PROBLEMS.get(answer.problem or "")
        return shown or f"It does not render a small conversation: {answer.message}"
    return None if answer.text else "It makes no text of a small conversation."
