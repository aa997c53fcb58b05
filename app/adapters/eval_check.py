"""What there is to say of the golden prompts in an upload, where it brings some.

Knows no rules of prompts (`app.rollouts.golden_file`). Invariant: nothing that a tenant wrote is
compiled on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from app.rollouts.golden_file import problems_of
from lora.findings import Finding, Findings
from lora.store import EVAL_FILE


async def eval_findings(folder: Path, names: Collection[str]) -> tuple[Finding, ...]:
    """`names`: of the files that lie in `folder`."""
    if EVAL_FILE not in names:
        return ()
    return await asyncio.to_thread(_findings, folder / EVAL_FILE)


def _findings(path: Path) -> tuple[Finding, ...]:
    findings = Findings(EVAL_FILE)
    for problem in problems_of(path.read_bytes()):
        param = None if problem.line is None else f"line {problem.line}"
        findings.refuse("eval_invalid", str(problem), param=param)
    return findings.all()
