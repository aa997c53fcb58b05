"""`python -m app.adapters.offline_check DIR --base PATH ...`: `engine.adapter_check`, and more.

What `tenfold adapter check` becomes. A chat template and golden prompts in the folder are looked at
here, as the API does it; then this process becomes the check of everything else, which loads torch,
and tells it what was found. Knows nothing of the other options. Invariant: this process runs no
template.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from app.adapters.eval_check import eval_findings
from app.adapters.template_check import template_findings
from app.chat_templates.sandbox import TemplateSandbox
from app.completions.tokenizer import read_special_tokens
from lora.base_spec import BaseSpec, UnsupportedBaseError
from lora.findings import Finding
from lora.store import CHAT_TEMPLATE_FILE, EVAL_FILE

OWNER = "ten_check"


def main() -> None:
    folder, _, base, *_ = sys.argv[1:]
    arguments = sys.argv[1:]
    names = [name for name in (CHAT_TEMPLATE_FILE, EVAL_FILE) if (Path(folder) / name).is_file()]
    if names:
        found = asyncio.run(_find(Path(folder), names, Path(base)))
        arguments += ["--found", msgspec.json.encode(found).decode()]
    os.execv(sys.executable, [sys.executable, "-m", "engine.adapter_check", *arguments])


async def _find(folder: Path, names: list[str], base: Path) -> tuple[Finding, ...]:
    try:
        spec = BaseSpec.from_folder(base)
    except UnsupportedBaseError:  # the check itself says so
        return ()
    sandbox = TemplateSandbox(read_special_tokens(base))
    try:
        found = await template_findings(sandbox, OWNER, folder, names, spec)
    finally:
        await sandbox.close()
    return (*found, *await eval_findings(folder, names))


if __name__ == "__main__":
    main()
