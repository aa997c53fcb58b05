"""The first half of an upload's validation: what its configuration and its header say.

Knows nothing of rows or of stores. Invariant: configuration and weights are read by a validator's
child and by nobody else; a refusal lists all that was found.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.adapters.reports import build_report, refusal
from app.adapters.validation_messages import Answer
from app.adapters.validator import Validator, ValidatorError
from app.errors import UnavailableError
from lora.base_spec import BaseSpec
from lora.digest import FileDigest, adapter_digest
from lora.findings import Finding, strictly
from lora.limits import ManifestLimits
from lora.store import CONFIG_FILE, WEIGHTS_FILE


@dataclass(frozen=True, slots=True)
class Checked:
    """An adapter whose structure passed: what is remembered of it, and what there is to say."""

    digest: str
    summary: dict[str, Any]
    warnings: tuple[Finding, ...]
    duration_ms: int

    def report(self, status: str) -> dict[str, Any]:
        return build_report(self.digest, status, self.warnings, duration_ms=self.duration_ms)


async def check_folder(
    validator: Validator,
    folder: Path,
    files: Mapping[str, FileDigest],
    base: BaseSpec,
    limits: ManifestLimits,
    *,
    known_bases: Collection[str] = (),
    found: Sequence[Finding] = (),
    reads_values: bool = False,
    strict: bool = False,
) -> Checked:
    """Every structural check, and every number where that is asked for.

    strict: a warning refuses as an error does.

    known_bases: names of other bases, of which the adapter must not be. found: what was found
    already, of files that a validator's child does not read.
    Raises the refusal with all findings, and UnavailableError (`validator_failed`) where the child
    failed for our own reasons.
    """
    digest, started_at = adapter_digest(files.values()), time.monotonic()
    answer = _missing_files(files)
    if answer is None:
        try:
            if reads_values:
                answer = await validator.check_values(folder, base, limits, None, known_bases)
            else:
                answer = await validator.check_structure(folder, base, limits, known_bases)
        except ValidatorError as error:
            raise UnavailableError(
                "The adapter could not be checked. Please try again.",
                code="validator_failed",
                internal=str(error),
            ) from error
    duration_ms = round(1e3 * (time.monotonic() - started_at))
    findings = (*answer.findings, *found)
    if strict:
        findings = strictly(findings)
    if answer.summary is None or any(each.severity == "error" for each in findings):
        raise refusal(findings, digest, duration_ms=duration_ms)
    return Checked(digest, answer.summary, findings, duration_ms)


def refuse_warnings(report: Mapping[str, Any]) -> None:
    """Raises the refusal of what a version's report has warnings of."""
    findings = [
        Finding(code=check["rule"], **{k: v for k, v in check.items() if k != "rule"})
        for check in report["checks"]
    ]
    if findings:
        raise refusal(strictly(findings), report["digest"])


def _missing_files(files: Mapping[str, FileDigest]) -> Answer | None:
    """The refusal of an upload that lacks one of the two files; None where both are there."""
    missing = {WEIGHTS_FILE: "adapter_empty", CONFIG_FILE: "config_missing"}
    findings = tuple(
        Finding(code, "error", f"The upload holds no {name}.", file=name)
        for name, code in missing.items()
        if name not in files
    )
    return Answer(findings=findings) if findings else None
