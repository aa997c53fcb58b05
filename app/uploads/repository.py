"""The SQL of uploads in parts.

Knows nothing of rules. Invariant: every query starts from the tenant, and the session is in its
scope; `list_unclean` alone is in the worker's, and shows whose upload is to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Select, and_, delete, exists, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.pages import PageQuery
from app.tables import Adapter, AdapterVersion
from app.uploads.tables import Upload, UploadPart

# Of which no version's bytes may be taken: they may be removed at any time.
_GOING = ("rejected", "deleting", "deleted")


class UploadRepository:
    """One tenant's uploads."""

    def __init__(self, session: AsyncSession, tenant_id: str) -> None:
        self._session = session
        self._tenant_id = tenant_id

    async def add(self, upload: Upload) -> None:
        assert upload.tenant_id == self._tenant_id
        self._session.add(upload)
        await self._session.flush()
        await self._session.refresh(upload)

    async def get(self, adapter_id: str, upload_id: str) -> Upload | None:
        return await self._session.scalar(
            self._uploads().where(Upload.adapter_id == adapter_id, Upload.id == upload_id)
        )

    async def lock(self, upload_id: str) -> Upload | None:
        """The row, locked and read afresh: whoever changes an upload comes in turn."""
        return await self._session.scalar(
            self._uploads()
            .where(Upload.id == upload_id)
            .with_for_update()
            .execution_options(populate_existing=True)
        )

    async def list_page(self, adapter_id: str, page: PageQuery) -> list[Upload]:
        query = page.narrow(self._uploads().where(Upload.adapter_id == adapter_id), Upload.id)
        return list(await self._session.scalars(query))

    async def parts_of(self, upload_ids: Sequence[str]) -> dict[str, list[UploadPart]]:
        """What was received of each upload, in the order of paths and numbers."""
        rows = await self._session.scalars(
            select(UploadPart)
            .where(UploadPart.tenant_id == self._tenant_id, UploadPart.upload_id.in_(upload_ids))
            .order_by(UploadPart.path, UploadPart.number)
            .execution_options(populate_existing=True)
        )
        found: dict[str, list[UploadPart]] = {upload_id: [] for upload_id in upload_ids}
        for row in rows:
            found[row.upload_id].append(row)
        return found

    async def put_part(
        self, upload_id: str, path: str, number: int, num_bytes: int, sha256: str
    ) -> UploadPart:
        """Write down that a part was received, in the place of one that was before."""
        statement = insert(UploadPart).values(
            upload_id=upload_id,
            path=path,
            number=number,
            tenant_id=self._tenant_id,
            num_bytes=num_bytes,
            sha256=sha256,
        )
        part = await self._session.scalar(
            statement.on_conflict_do_update(
                index_elements=[UploadPart.upload_id, UploadPart.path, UploadPart.number],
                set_={"num_bytes": num_bytes, "sha256": sha256, "received_at": func.now()},
            )
            .returning(UploadPart)
            .execution_options(populate_existing=True)
        )
        assert part is not None
        return part

    async def remove_parts(self, upload_id: str, path: str, numbers: Sequence[int]) -> None:
        """Forget parts, which are to be sent again."""
        await self._session.execute(
            delete(UploadPart).where(
                UploadPart.tenant_id == self._tenant_id,
                UploadPart.upload_id == upload_id,
                UploadPart.path == path,
                UploadPart.number.in_(numbers),
            )
        )

    async def find_owned_file(self, path: str, num_bytes: int, sha256: str) -> str | None:
        """The locator of a version of the tenant's own that has this very file."""
        wanted = [{"name": path, "num_bytes": num_bytes, "sha256": sha256}]
        return await self._session.scalar(
            select(AdapterVersion.locator)
            .where(
                AdapterVersion.tenant_id == self._tenant_id,
                AdapterVersion.state.not_in(_GOING),
                AdapterVersion.files.contains(wanted),
            )
            .limit(1)
        )

    async def remove_orphan(self, upload_id: str) -> None:
        """Forget an upload whose adapter is gone."""
        await self._session.execute(
            delete(Upload).where(
                Upload.tenant_id == self._tenant_id,
                Upload.id == upload_id,
                ~exists().where(Adapter.id == Upload.adapter_id),
            )
        )

    def _uploads(self) -> Select[Upload]:
        return select(Upload).where(Upload.tenant_id == self._tenant_id)


async def list_unclean(
    session: AsyncSession, now: datetime, ended_before: datetime, limit: int
) -> list[tuple[str, str]]:
    """(id, tenant_id) of uploads whose parts are to be removed. In the worker's scope."""
    is_claimed = and_(Upload.state == "completing", Upload.claimed_until > now)
    rows = await session.execute(
        select(Upload.id, Upload.tenant_id)
        .where(
            Upload.cleaned_at.is_(None),
            or_(Upload.expires_at <= now, Upload.ended_at <= ended_before),
            ~is_claimed,
        )
        .order_by(Upload.expires_at)
        .limit(limit)
    )
    return [(upload_id, tenant_id) for upload_id, tenant_id in rows]
