"""The second half of an upload's validation: what reads every value, and what tries the adapter.

Knows nothing of who waits for it. Invariants: the bytes that are checked are the store's, and their
digest is recomputed; a version that passed has the certificate of the engine that tried it, and is
active, unless its upload said that it is not to be: then it is `validated`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.certifier import Certifier, Trial
from app.adapters.jobs_repository import add_job
from app.adapters.lifecycle import make_active
from app.adapters.reports import build_report
from app.adapters.repository import AdapterRepository
from app.adapters.states import GONE, REJECTED, VALIDATED, VERIFYING, change_state
from app.adapters.validator import Validator
from app.adapters.versions_repository import VersionRepository
from app.audit.trail import AuditTrail
from app.tables import AdapterVersion
from lora.base_spec import BaseSpec
from lora.digest import adapter_digest, hash_file
from lora.findings import Finding, strictly
from lora.limits import DEFAULT_LIMITS
from lora.store import (
    ADAPTER_FILES,
    CHAT_TEMPLATE_FILE,
    AdapterCorruptError,
    AdapterMissingError,
    AdapterStore,
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Verifier:
    """What checks an adapter that lies in the store.

    model: the base's folder, where its weights lie on this machine; without them only engines
    compare an adapter's copies of them. certifier: None tries nothing, and certifies nothing.
    """

    validator: Validator
    store: AdapterStore
    base: BaseSpec
    model: Path | None = None
    certifier: Certifier | None = None

    async def check_stored(self, locator: str, digest: str) -> Sequence[Finding]:
        """All findings about an adapter in the store, warnings included."""
        try:
            folder = await asyncio.to_thread(self._fetch, locator, digest)
        except AdapterMissingError:
            return [_corrupt("The adapter's bytes are missing from the store.")]
        except AdapterCorruptError:
            return [_corrupt("The adapter's bytes in the store are not those that were accepted.")]
        answer = await self.validator.check_values(folder, self.base, DEFAULT_LIMITS, self.model)
        return answer.findings

    def _fetch(self, locator: str, digest: str) -> Path:
        """Raises AdapterCorruptError where the store has other bytes, and not only a copy of it."""
        for anew in (False, True):
            folder = self.store.fetch(locator, anew=anew)
            if _digest_of(folder) == digest:
                return folder
        raise AdapterCorruptError(f"what lies at {locator} is not {digest}")

    def is_certified(self, version: AdapterVersion) -> bool:
        """Whether engines that run now would load it."""
        if self.certifier is None or version.certificate is None:
            return False
        return self.certifier.is_valid(version.digest, version.certificate["certificate"])

    async def try_out(self, tenant_id: str, locator: str, digest: str) -> Trial:
        """What an engine made of it. Raises NotTriedError."""
        if self.certifier is None:
            return Trial(())
        return await self.certifier.certify(tenant_id, digest, locator)


async def verify_version(
    session: AsyncSession,
    verifier: Verifier,
    tenant_id: str,
    version_id: str,
    now: datetime,
    trail: AuditTrail | None = None,
) -> None:
    """Check one version and write down what came of it. In the tenant's scope.

    `trail`: where it is written down that an alias was moved.
    One that passed before is tried for a certificate that it lacks, and stays what it is.
    Raises NotTriedError, ValidatorError: it is to be checked later.
    """
    versions = VersionRepository(session, tenant_id)
    waiting = await versions.get(version_id)
    if waiting is None or waiting.state in (*GONE, REJECTED):
        return  # deleted, or done by a worker whose answer was lost
    if waiting.state != VERIFYING and verifier.is_certified(waiting):
        return
    state, locator, digest = waiting.state, waiting.locator, waiting.digest
    findings: list[Finding] = []
    began_at = time.monotonic()
    if state == VERIFYING:
        findings += await verifier.check_stored(locator, digest)
    trial = Trial(())
    if not _has_errors(findings):
        trial = await verifier.try_out(tenant_id, locator, digest)
        findings += [each for each in trial.findings if each.code not in _codes(findings)]
    duration_ms = round(1e3 * (time.monotonic() - began_at))
    # The check may have taken a while: nothing was locked meanwhile, so look again.
    locked = await AdapterRepository(session, tenant_id).lock(waiting.adapter_id)
    version = await versions.get(version_id)
    if locked is None or version is None or version.state != state:
        return
    version.certificate = _stored(trial, now)
    if state == VERIFYING:
        await _conclude(session, version, findings, trial, duration_ms, now, trail)
    await session.flush()
    log.info("adapter_verified", version_id=version.id, state=version.state, digest=version.digest)


async def _conclude(
    session: AsyncSession,
    version: AdapterVersion,
    findings: Sequence[Finding],
    trial: Trial,
    duration_ms: int,
    now: datetime,
    trail: AuditTrail | None,
) -> None:
    """`duration_ms`: of this half of the check; the report shows that of both."""
    if version.strict:
        findings = strictly(findings)
    if _has_errors(findings):
        change_state(version, REJECTED)
        version.certificate = None
        await add_job(session, version.tenant_id, "remove", version.locator)
    elif version.activates:
        await make_active(session, version, now, trail)
    else:
        change_state(version, VALIDATED)
    duration_ms += version.report.get("duration_ms", 0)
    report = build_report(version.digest, version.state, findings, duration_ms=duration_ms)
    # What was said of the chat template stays: it was tried when it came.
    report["checks"] += [
        check for check in version.report["checks"] if check.get("file") == CHAT_TEMPLATE_FILE
    ]
    if trial.figures is not None:
        report["figures"] = msgspec.to_builtins(trial.figures)
    version.report = report


def _stored(trial: Trial, now: datetime) -> dict[str, Any] | None:
    """A certificate as the registry keeps it."""
    if trial.certificate is None:
        return None
    figures = msgspec.to_builtins(trial.figures)
    return {"certificate": trial.certificate, "figures": figures, "issued_at": now.isoformat()}


def _has_errors(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _codes(findings: Sequence[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def _digest_of(folder: Path) -> str:
    files = (path for path in folder.iterdir() if path.name in ADAPTER_FILES)
    return adapter_digest(hash_file(path) for path in files)


def _corrupt(message: str) -> Finding:
    return Finding(code="adapter_corrupt", severity="error", message=message)
