"""An upload's way in: receive, check the structure, keep the bytes, write the version down.

Knows nothing of who uploads, nor of how the files came: `accept_folder` takes them from wherever
they were put. Invariants: nothing is stored before it passed; the version's row and its job are
one transaction, in which the bytes are in the store; equal bytes for the same adapter are the same
version, which another upload repairs; no lock of a tenant or an adapter is held while bytes are put
into the store. No database connection is held while the client sends or while its files are
checked, and uploads that wait for each other hold none either: a few at a time are written down, so
that the registry answers everybody else; a store that is slow about it holds up no check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request

from app.adapters.eval_check import eval_findings
from app.adapters.jobs_repository import add_job
from app.adapters.keeping import kept_bytes
from app.adapters.known_bases import known_bases
from app.adapters.override_limit import override_limit
from app.adapters.receive import receive_files
from app.adapters.repository import AdapterRepository
from app.adapters.schemas import describe_version
from app.adapters.service import find_adapter
from app.adapters.staging import staging
from app.adapters.states import REJECTED, VERIFYING, change_state
from app.adapters.storage_errors import storage_errors
from app.adapters.structure_check import Checked, check_folder, refuse_warnings
from app.adapters.submission import Submission, Terms
from app.adapters.template_check import template_findings
from app.adapters.turns import Turns
from app.adapters.validator import Validator
from app.adapters.versions_repository import VersionRepository
from app.audit.trail import AuditTrail
from app.chat_templates.sandbox import TemplateSandbox
from app.context import AppContext
from app.db import Database, tenant_scope
from app.errors import NotFoundError
from app.ids import new_id
from app.receiving import MULTIPART_OVERHEAD_BYTES, declared_bytes
from app.settings import WorkerSettings
from app.tables import Adapter, AdapterVersion
from app.uploads.quotas import Quotas
from lora.base_spec import BaseSpec
from lora.digest import FileDigest
from lora.findings import Finding
from lora.limits import DEFAULT_LIMITS, ManifestLimits
from lora.store import AdapterStore, locator_of


class IntakeContext(Protocol):
    """What `accept_folder` needs of its process: an `AppContext` has it, and so may a worker."""

    @property
    def settings(self) -> WorkerSettings: ...

    @property
    def database(self) -> Database: ...

    @property
    def store(self) -> AdapterStore: ...

    @property
    def base(self) -> BaseSpec: ...

    @property
    def validator(self) -> Validator: ...

    @property
    def sandbox(self) -> TemplateSandbox: ...

    @property
    def keeping(self) -> Turns:
        """Of the few whose bytes are put into the store at once."""
        ...


async def upload_version(
    context: AppContext,
    tenant_id: str,
    reference: str,
    request: Request,
    trail: AuditTrail,
    terms: Terms,
    *,
    activates: bool = True,
) -> AdapterVersion:
    """A multipart body's files as a version: see `accept_folder`."""
    submission = Submission.of("upload", terms, trail, activates=activates)
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        adapter = await find_adapter(session, tenant_id, reference)
        # At least so many: what lies between the files is no byte of theirs.
        num_bytes = max(0, (declared_bytes(request) or 0) - MULTIPART_OVERHEAD_BYTES)
        await Quotas(session, tenant_id).take_upload(trail.at, num_bytes)
        await session.commit()
    async with staging(context.settings.data_dir) as folder:
        with storage_errors():
            files = await receive_files(request, folder, context.settings.max_upload_bytes)
        return await accept_folder(context, tenant_id, adapter.id, folder, files, submission, trail)


async def accept_folder(
    context: IntakeContext,
    tenant_id: str,
    adapter_reference: str,
    folder: Path,
    files: Mapping[str, FileDigest],
    submission: Submission,
    trail: AuditTrail,
) -> AdapterVersion:
    """A new version in state `verifying`, or the existing one with these bytes.

    The way in of every upload, import and completed session. `folder` holds the received files by
    their accepted names, `files` what was received, by the same names, which are those of
    `lora.store`; it stays the caller's, who removes it. Sending the same bytes again puts them back
    where the store lost or damaged them; a rejected version, and one without a certificate, is
    tried again. Where warnings refuse, numbers are read before the answer, and not only after it.

    Raises NotFoundError, QuotaExceededError, UnavailableError where the bytes cannot be kept or it
    is not their turn in time, or the refusal of the upload as an ApiError with a report.
    """
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        adapter = await find_adapter(session, tenant_id, adapter_reference)
        limits = await _limits_of(context, session, tenant_id)
        others = await known_bases(session, tenant_id, context.settings.other_bases)
    found = await _companions_findings(context, tenant_id, folder, files)
    checked = await check_folder(
        context.validator,
        folder,
        files,
        context.base,
        limits,
        known_bases=others,
        found=found,
        reads_values=submission.strict,
        strict=submission.strict,
    )
    num_bytes = sum(file.num_bytes for file in files.values())
    digest, paths = checked.digest, {name: folder / name for name in files}
    async with context.keeping.take():
        await _refuse_beyond_quota(context, tenant_id, adapter.id, checked, num_bytes)
        async with kept_bytes(context.database, context.store, tenant_id, digest, paths) as session:
            version, action = await _write_down(
                session, adapter, checked, list(files.values()), submission
            )
            shown = describe_version(version)
            await trail.record(session, tenant_id, action, version.id, after=shown)
    return version


async def dry_run(
    context: AppContext,
    tenant_id: str,
    reference: str,
    request: Request,
    *,
    strict: bool = False,
) -> Checked:
    """What is found in a multipart body's files, every number read; nothing is kept.

    Raises NotFoundError, or the refusal that an upload would be given.
    """
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        await find_adapter(session, tenant_id, reference)
        limits = await _limits_of(context, session, tenant_id)
        others = await known_bases(session, tenant_id, context.settings.other_bases)
    async with staging(context.settings.data_dir) as folder:
        with storage_errors():
            files = await receive_files(request, folder, context.settings.max_upload_bytes)
        found = await _companions_findings(context, tenant_id, folder, files)
        return await check_folder(
            context.validator,
            folder,
            files,
            context.base,
            limits,
            known_bases=others,
            found=found,
            reads_values=True,
            strict=strict,
        )


async def _companions_findings(
    context: IntakeContext, tenant_id: str, folder: Path, files: Mapping[str, FileDigest]
) -> tuple[Finding, ...]:
    """Of what an adapter may bring beside its configuration and its weights."""
    found = await template_findings(context.sandbox, tenant_id, folder, files, context.base)
    return (*found, *await eval_findings(folder, files))


async def _limits_of(
    context: IntakeContext, session: AsyncSession, tenant_id: str
) -> ManifestLimits:
    default = context.settings.max_override_bytes
    max_override_bytes = await override_limit(session, tenant_id, default)
    return replace(DEFAULT_LIMITS, max_override_bytes=max_override_bytes)


async def _refuse_beyond_quota(
    context: IntakeContext, tenant_id: str, adapter_id: str, checked: Checked, num_bytes: int
) -> None:
    """Before anything is stored; it is counted again where the version is written down.

    Raises QuotaExceededError.
    """
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        versions = VersionRepository(session, tenant_id)
        if not _is_counted(await versions.get_live_by_digest(adapter_id, checked.digest)):
            max_rank = checked.summary["max_rank"]
            await Quotas(session, tenant_id).check_version(num_bytes, max_rank)


async def _write_down(
    session: AsyncSession,
    adapter: Adapter,
    checked: Checked,
    files: list[FileDigest],
    submission: Submission,
) -> tuple[AdapterVersion, str]:
    """The version, and what became of it, as the audit log calls it.

    Raises NotFoundError, QuotaExceededError, or the refusal of what was found before.
    """
    tenant_id, digest = adapter.tenant_id, checked.digest
    locked = await AdapterRepository(session, tenant_id).lock(adapter.id)
    if locked is None:  # deleted while the client was sending
        raise NotFoundError("No such adapter.", param="adapter")
    versions, num_bytes = VersionRepository(session, tenant_id), sum(f.num_bytes for f in files)
    existing = await versions.get_live_by_digest(adapter.id, digest)
    if not _is_counted(existing):
        await Quotas(session, tenant_id).check_version(num_bytes, checked.summary["max_rank"])
    if existing is not None:
        await _send_again(session, existing, checked, submission)
        return existing, "version.sent_again"
    version = AdapterVersion(
        id=new_id("ver"),
        tenant_id=tenant_id,
        adapter_id=adapter.id,
        number=locked.next_number,
        digest=digest,
        state=VERIFYING,
        locator=locator_of(tenant_id, digest),
        num_bytes=num_bytes,
        files=[asdict(file) for file in files],
        manifest=checked.summary,
        report=checked.report(VERIFYING),
        activates=submission.activates,
        strict=submission.strict,
        provenance=submission.provenance.model_dump(mode="json"),
    )
    locked.next_number += 1
    await versions.add(version)
    await session.refresh(version)
    await add_job(session, tenant_id, "verify", version.id)
    return version, "version.uploaded"


async def _send_again(
    session: AsyncSession, existing: AdapterVersion, checked: Checked, submission: Submission
) -> None:
    """The same bytes for the same adapter. Whoever sent them last says how they are meant:

    whether warnings refuse them, and whether they are active once they have passed.
    """
    if existing.state == REJECTED:
        change_state(existing, VERIFYING)
        existing.report = checked.report(VERIFYING)
        existing.provenance = submission.provenance.model_dump(mode="json")
        await add_job(session, existing.tenant_id, "verify", existing.id)
    elif existing.state != VERIFYING:
        if submission.strict:  # what only the trial tells was told then
            refuse_warnings(existing.report)
        # Nothing is done where its certificate is good.
        await add_job(session, existing.tenant_id, "verify", existing.id)
        return
    existing.strict, existing.activates = submission.strict, submission.activates


def _is_counted(version: AdapterVersion | None) -> bool:
    """Whether its bytes are among those that its tenant has: a rejected one's are removed."""
    return version is not None and version.state != REJECTED
