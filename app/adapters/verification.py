"""The second half of an upload's validation: what has to read every value.

Knows nothing of who waits for it. Invariants: the bytes that are checked are the store's, and their
digest is recomputed; a version that passed is active, unless its upload said that it is not to be:
then it is `validated`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.jobs_repository import add_job
from app.adapters.lifecycle import make_active
from app.adapters.reports import build_report
from app.adapters.repository import AdapterRepository
from app.adapters.states import REJECTED, VALIDATED, change_state
from app.adapters.versions_repository import VersionRepository
from app.tables import AdapterVersion
from lora.base_copies import check_against_base
from lora.base_files import BaseFiles
from lora.base_spec import BaseSpec
from lora.digest import adapter_digest, hash_file
from lora.findings import Finding
from lora.manifest import ManifestError, read_manifest
from lora.store import CONFIG_FILE, WEIGHTS_FILE, AdapterMissingError, AdapterStore
from lora.values import check_values

log = structlog.get_logger()


async def verify_version(
    session: AsyncSession,
    store: AdapterStore,
    base: BaseSpec,
    base_files: BaseFiles | None,
    tenant_id: str,
    version_id: str,
    now: datetime,
) -> None:
    """Check one version and write down what came of it. In the tenant's scope.

    base_files: where the base's own numbers are, to compare copies with; None where they are not
    on this machine, so that only engines compare them.
    """
    versions = VersionRepository(session, tenant_id)
    waiting = await versions.get(version_id)
    if waiting is None or waiting.state != "verifying":
        return  # deleted, or done by a worker whose answer was lost
    findings = await asyncio.to_thread(
        check_stored, store, base, base_files, waiting.locator, waiting.digest
    )
    # The check may have taken a while: nothing was locked meanwhile, so look again.
    adapters = AdapterRepository(session, tenant_id)
    locked = await adapters.lock(waiting.adapter_id)
    version = await versions.get(version_id)
    if locked is None or version is None or version.state != "verifying":
        return
    if any(finding.severity == "error" for finding in findings):
        await _reject(session, version, findings)
    else:
        await _accept(session, version, findings, now)
    await session.flush()
    log.info("adapter_verified", version_id=version.id, state=version.state, digest=version.digest)


def check_stored(
    store: AdapterStore,
    base: BaseSpec,
    base_files: BaseFiles | None,
    locator: str,
    digest: str,
) -> Sequence[Finding]:
    """All findings about an adapter in the store, warnings included. Blocking."""
    try:
        folder = store.fetch(locator)
    except AdapterMissingError:
        return [_corrupt("The adapter's bytes are missing from the store.")]
    if _digest_of(folder) != digest:
        return [_corrupt("The adapter's bytes in the store are not those that were accepted.")]
    weights = folder / WEIGHTS_FILE
    try:
        manifest = read_manifest((folder / CONFIG_FILE).read_bytes(), weights, base)
    except ManifestError as error:  # the rules have become stricter since it was accepted
        return error.findings
    findings = [*manifest.warnings, *check_values(weights, manifest)]
    if base_files is not None:
        findings += check_against_base(weights, manifest, base_files)
    return findings


async def _accept(
    session: AsyncSession,
    version: AdapterVersion,
    findings: Sequence[Finding],
    now: datetime,
) -> None:
    if version.activates:
        await make_active(session, version, now)
    else:
        change_state(version, VALIDATED)
    version.report = build_report(version.digest, version.state, findings)


async def _reject(
    session: AsyncSession, version: AdapterVersion, findings: Sequence[Finding]
) -> None:
    change_state(version, REJECTED)
    version.report = build_report(version.digest, "rejected", findings)
    await add_job(session, version.tenant_id, "remove", version.locator)


def _digest_of(folder: Path) -> str:
    return adapter_digest([hash_file(folder / CONFIG_FILE), hash_file(folder / WEIGHTS_FILE)])


def _corrupt(message: str) -> Finding:
    return Finding(code="adapter_corrupt", severity="error", message=message)
