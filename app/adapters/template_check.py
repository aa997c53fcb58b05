"""What there is to say of the chat template in an upload, where there is one.

Knows no rules of templates (`app.chat_templates`). Invariant: this process runs no template.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from app.chat_templates.checking import check_template
from app.chat_templates.process import SandboxError
from app.chat_templates.sandbox import SandboxBusyError, TemplateSandbox
from app.completions.prompting import MAX_CHARS_PER_TOKEN
from app.errors import UnavailableError
from lora.base_spec import BaseSpec
from lora.findings import Finding
from lora.store import CHAT_TEMPLATE_FILE


async def template_findings(
    sandbox: TemplateSandbox, tenant_id: str, folder: Path, names: Collection[str], base: BaseSpec
) -> tuple[Finding, ...]:
    """`names`: of the files that lie in `folder`.

    Raises UnavailableError (`validator_failed`) where the template could not be tried.
    """
    if CHAT_TEMPLATE_FILE not in names:
        return ()
    content = await asyncio.to_thread((folder / CHAT_TEMPLATE_FILE).read_bytes)
    max_chars = MAX_CHARS_PER_TOKEN * base.max_model_len
    try:
        return await check_template(sandbox, tenant_id, content, max_chars)
    except (SandboxError, SandboxBusyError) as error:
        raise UnavailableError(
            "The adapter's chat template could not be checked. Please try again.",
            code="validator_failed",
            internal=str(error),
        ) from error
