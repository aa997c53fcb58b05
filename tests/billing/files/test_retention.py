"""A file goes when it was asked to, when its tenant's policy says so, or with its tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from app.context import AppContext
from app.db import tenant_scope
from app.files.jobs import FileJobs
from app.files.repository import FileRepository
from tests.billing.files.test_files_api import upload, uploaded
from tests.builders.clock import Clock
from tests.builders.operator import Operator, Tenant

DAY_S = 86_400
ANCHOR = {"expires_after[anchor]": "created_at"}
HOUR = ANCHOR | {"expires_after[seconds]": "3600"}


def num_stored(context: AppContext) -> int:
    assert context.settings.file_store is not None
    return len([p for p in Path(context.settings.file_store).rglob("*") if p.is_file()])


async def removed(jobs: FileJobs) -> int:
    number = 0
    while await jobs.remove_next():
        number += 1
    return number


async def test_an_expired_file_is_not_found_at_once_and_its_bytes_go_with_the_next_job(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext, clock: Clock, file_jobs: FileJobs
) -> None:
    gone, kept = await uploaded(api, acme, **HOUR), await uploaded(api, acme)
    assert gone["expires_at"] == gone["created_at"] + 3600
    assert kept["expires_at"] == kept["created_at"] + 30 * DAY_S
    clock.advance(3599)
    assert await removed(file_jobs) == 0 and num_stored(context) == 2  # control: not before

    clock.advance(2)
    for path in ("", "/content"):
        response = await api.get(f"/v1/files/{gone['id']}{path}", headers=acme.headers)
        assert response.status_code == 404
    assert await removed(file_jobs) == 1 and num_stored(context) == 1
    listed = (await api.get("/v1/files", headers=acme.headers)).json()["data"]
    assert [file["id"] for file in listed] == [kept["id"]]


async def test_a_tenants_policy_bounds_the_life_of_its_files_of_old_ones_too(
    api: httpx.AsyncClient,
    operator: Operator,
    acme: Tenant,
    globex: Tenant,
    context: AppContext,
    clock: Clock,
    file_jobs: FileJobs,
) -> None:
    before = await uploaded(api, acme)
    await uploaded(api, globex)
    policy = {"data_policy": {"store_prompts": True, "retention_days": 2}}
    await operator.done("PATCH", "/tenants/acme", json=policy)
    after = await uploaded(api, acme, **ANCHOR, **{"expires_after[seconds]": str(10 * DAY_S)})
    shown = (await api.get(f"/v1/files/{before['id']}", headers=acme.headers)).json()
    for file in (shown, after):
        assert file["expires_at"] == file["created_at"] + 2 * DAY_S
    clock.advance(2 * DAY_S + 1)
    assert await removed(file_jobs) == 2
    assert num_stored(context) == 1  # control: the other tenant's


async def test_a_deleted_files_bytes_go_with_the_next_job(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext, file_jobs: FileJobs
) -> None:
    file = await uploaded(api, acme)
    response = await api.delete(f"/v1/files/{file['id']}", headers=acme.headers)
    assert response.json() == {"id": file["id"], "object": "file", "deleted": True}
    assert num_stored(context) == 1
    assert await removed(file_jobs) == 1 and num_stored(context) == 0


async def test_a_tenant_that_is_deleted_takes_its_files_along(
    api: httpx.AsyncClient,
    operator: Operator,
    acme: Tenant,
    globex: Tenant,
    context: AppContext,
    file_jobs: FileJobs,
) -> None:
    await uploaded(api, acme), await uploaded(api, acme), await uploaded(api, globex)
    deleted = await operator.done("DELETE", "/tenants/acme")
    assert deleted["erased"]["files"] == 2
    assert await removed(file_jobs) == 2
    assert num_stored(context) == 1  # control: the other tenant's


async def test_an_upload_that_was_killed_is_removed_a_day_later(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext, clock: Clock, file_jobs: FileJobs
) -> None:
    locator = f"{acme.id}/fil_{'0' * 26}"
    assert context.vault is not None
    async with context.database.session() as session:  # all that such a process has left
        await tenant_scope(session, acme.id)
        files = FileRepository(session, acme.id)
        await files.plan_removal(locator, context.now() + timedelta(days=1))
        await session.commit()

    async def half() -> AsyncIterator[bytes]:
        yield b"half"

    await context.vault.store.put(locator, half())
    assert await removed(file_jobs) == 0 and num_stored(context) == 1
    clock.advance(DAY_S)
    assert await removed(file_jobs) == 1 and num_stored(context) == 0
    assert (await upload(api, acme, b"x")).is_success


async def test_uploads_at_once_do_not_pass_what_all_files_together_may_hold(
    api: httpx.AsyncClient,
    acme: Tenant,
    context: AppContext,
    file_jobs: FileJobs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(context.settings.__dict__, "max_tenant_file_bytes", 150_000)
    both_begun = asyncio.Barrier(2)

    async def form() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        await both_begun.wait()  # each has found that there is room for it
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield bytes(100_000) + b"\r\n--b--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=b", **acme.headers}
    responses = await asyncio.gather(
        *(api.post("/v1/files", headers=headers, content=form()) for _ in range(2))
    )
    taken, refused = sorted(responses, key=lambda response: response.status_code)
    assert taken.status_code == 200, taken.text
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "quota_exceeded")
    listed = (await api.get("/v1/files", headers=acme.headers)).json()["data"]
    assert [file["id"] for file in listed] == [taken.json()["id"]]
    assert await removed(file_jobs) == 1 and num_stored(context) == 1
