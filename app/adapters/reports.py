"""Validation reports: what was found in an upload, as it is stored, shown and answered.

Knows nothing of how findings are made (`lora`). Invariant: every finding is in the report, and a
refusal's `code` is the first failing one in the order of `lora.findings`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from app.errors import NO_RETRY, ApiError
from lora.findings import Finding, ManifestError


def build_report(digest: str | None, status: str, findings: Iterable[Finding]) -> dict[str, Any]:
    """`{"status", "digest", "checks": [{"rule", "severity", "message", ...}]}`."""
    return {"status": status, "digest": digest, "checks": [_check(found) for found in findings]}


def refusal(error: ManifestError, digest: str | None) -> ApiError:
    """The answer to an upload that is refused: its code, and every finding in `error.report`."""
    first = next(found for found in error.findings if found.code == error.code)
    return ApiError(
        error.status,
        error.code,
        "invalid_request_error",
        error.message,
        param=first.param or first.file,
        headers=NO_RETRY,
        details={"report": build_report(digest, "rejected", error.findings)},
    )


def _check(finding: Finding) -> dict[str, Any]:
    fields = asdict(finding)
    rule = fields.pop("code")
    return {"rule": rule} | {name: value for name, value in fields.items() if value is not None}
