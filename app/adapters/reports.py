"""Validation reports: what was found in an upload, as it is stored, shown and answered.

Knows nothing of how findings are made (`lora`). Invariant: every finding is in the report, and a
refusal's `code` is the first failing one in the order of `lora.findings`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from app.adapters.hints import HINTS
from app.errors import NO_RETRY, ApiError
from lora.findings import Finding, ManifestError


def build_report(
    digest: str | None,
    status: str,
    findings: Iterable[Finding],
    *,
    duration_ms: int | None = None,
) -> dict[str, Any]:
    """`{"status", "digest", "checks": [...]}`, and `duration_ms` where it is given.

    A check is `{"rule", "severity", "message"}`, with `file`, `param`, `expected`, `actual` and
    `hint` where there is something to say.
    """
    report: dict[str, Any] = {"status": status, "digest": digest}
    if duration_ms is not None:
        report["duration_ms"] = duration_ms
    return report | {"checks": [_check(found) for found in findings]}


def refusal(
    findings: Iterable[Finding], digest: str | None, *, duration_ms: int | None = None
) -> ApiError:
    """The answer to an upload that is refused: its code, and every finding in `error.report`."""
    error = ManifestError(findings)
    first = next(
        found for found in error.findings if (found.code, found.severity) == (error.code, "error")
    )
    report = build_report(digest, "rejected", error.findings, duration_ms=duration_ms)
    return ApiError(
        error.status,
        error.code,
        "invalid_request_error",
        error.message,
        param=first.param or first.file,
        headers=NO_RETRY,
        details={"report": report},
    )


def _check(finding: Finding) -> dict[str, Any]:
    fields = asdict(replace(finding, hint=finding.hint or HINTS.get(finding.code)))
    rule = fields.pop("code")
    return {"rule": rule} | {name: value for name, value in fields.items() if value is not None}
