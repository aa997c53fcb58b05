"""No byte stays in the store that no version has, whatever ends an upload, and none goes that one
has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text, update
from structlog.testing import capture_logs

from app.adapters.jobs import JobRunner
from app.adapters.keeping import MAX_PUT_S
from app.context import AppContext
from app.db import Database, worker_scope
from app.settings import Settings
from app.tables import AdapterJob
from lora.base_spec import BaseSpec
from lora.store import WEIGHTS_FILE, StoreUnavailableError, locator_of
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant
from tests.fixtures.servers import TestDatabase

BOT = "/tenants/acme/adapters/bot"
COMES_BACK_S = 60
Files = dict[str, bytes]
REFUSE_COMMITS = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'the connection is lost' USING ERRCODE = '08006'; END $$",
    "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON adapter_versions"
    " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
)
ACCEPT_COMMITS = ("DROP FUNCTION refuse CASCADE",)
END_CONNECTIONS = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"adapter_retention_days": 7})


@pytest.fixture
def several(tiny_base: BaseSpec) -> list[Files]:
    return [adapter_files(tiny_base, rank=1, seed=seed) for seed in range(3)]


@pytest.fixture
async def owner(database: TestDatabase) -> AsyncIterator[Database]:
    opened = Database(database.owner_url, pool_size=1)
    yield opened
    await opened.close()


async def run(owner: Database, statements: Sequence[str]) -> None:
    async with owner.session() as session:
        for statement in statements:
            await session.execute(text(statement))
        await session.commit()


def stored(settings: Settings) -> list[str]:
    """What lies in the store: how many files of how many adapters."""
    return sorted(path.parent.name for path in Path(settings.adapter_store).glob("ten_*/*/*"))


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@dataclass
class Put:
    """What the store's `put` is to do."""

    settings: Settings
    real: Any
    is_half: bool = False
    began: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def __call__(self, tenant_id: str, digest: str, files: dict[str, Path]) -> str:
        if self.is_half:
            folder = Path(self.settings.adapter_store) / locator_of(tenant_id, digest)
            folder.mkdir(parents=True)
            (folder / WEIGHTS_FILE).write_bytes(files[WEIGHTS_FILE].read_bytes())
            raise StoreUnavailableError("the bucket went away")
        locator: str = self.real(tenant_id, digest, files)
        self.began.set()
        assert self.may_end.wait(30)
        return locator


@pytest.fixture
def put(context: AppContext, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    found = Put(settings, context.store.put)
    found.may_end.set()
    monkeypatch.setattr(context.store, "put", found)
    yield found
    found.may_end.set()


async def begin(operator: Operator, put: Put, files: Files) -> asyncio.Task[httpx.Response]:
    """An upload whose bytes are in the store, and which has not been told yet."""
    put.began.clear()
    put.may_end.clear()
    uploading = asyncio.create_task(operator.upload("acme", "bot", files))
    assert await asyncio.to_thread(put.began.wait, 30)
    return uploading


async def test_bytes_go_that_a_store_or_a_registry_was_lost_over(
    operator: Operator, acme: Tenant, files: Files, put: Put, owner: Database, settings: Settings
) -> None:
    put.is_half = True
    assert code(await operator.upload("acme", "bot", files)) == (503, "dependency_unavailable")
    await operator.run_jobs()
    assert len(stored(settings)) == 1, "whoever puts may still be at it"
    await operator.run_jobs_after(MAX_PUT_S)
    assert stored(settings) == []

    put.is_half = False
    uploading = await begin(operator, put, files)
    await run(owner, END_CONNECTIONS)
    put.may_end.set()
    assert code(await uploading) == (503, "dependency_unavailable")
    assert len(stored(settings)) == 2
    await operator.run_jobs_after(MAX_PUT_S)
    assert stored(settings) == []
    assert (await operator.push("acme", "bot", files))["state"] == "active"


async def test_control_without_a_guard_it_stays(
    operator: Operator,
    acme: Tenant,
    files: Files,
    put: Put,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def add_none(*_: Any, **__: Any) -> str:
        return "job_none"

    monkeypatch.setattr("app.adapters.keeping.add_guard", add_none)
    put.is_half = True
    await operator.upload("acme", "bot", files)
    await operator.run_jobs_after(MAX_PUT_S)
    assert len(stored(settings)) == 1


async def test_bytes_whose_version_was_not_committed_go_but_for_what_has_one_or_had(
    operator: Operator,
    acme: Tenant,
    several: list[Files],
    owner: Database,
    settings: Settings,
) -> None:
    """Of three: nobody sends the first again, the second is sent again, the third was deleted
    before and is retained."""
    await operator.push("acme", "bot", several[2])
    await operator.done("DELETE", f"{BOT}/versions/v1", params={"force": True, "aliases": "remove"})
    await run(owner, REFUSE_COMMITS)
    for files in several:
        assert code(await operator.upload("acme", "bot", files)) == (503, "dependency_unavailable")
    await run(owner, ACCEPT_COMMITS)
    versions = (await operator.done("GET", f"{BOT}/versions"))["data"]
    assert len(versions) == 1 and len(set(stored(settings))) == 3
    again = await operator.push("acme", "bot", several[1])

    await operator.run_jobs_after(MAX_PUT_S)

    kept = {each["digest"].removeprefix("sha256:") for each in (*versions, again)}
    assert set(stored(settings)) == kept
    assert (await operator.done("POST", f"{BOT}/versions/v1/restore"))["state"] == "active"
    # What was sent again and is erased does not wait for the guard of an upload that has failed.
    await run(owner, REFUSE_COMMITS)
    await operator.upload("acme", "bot", several[0])
    await run(owner, ACCEPT_COMMITS)
    last = await operator.push("acme", "bot", several[0])
    query = {"erase": True, "force": True, "aliases": "remove"}
    await operator.done("DELETE", f"{BOT}/versions/{last['version']}", params=query)
    await operator.run_jobs()
    assert set(stored(settings)) == kept


@pytest.mark.parametrize("is_lost", [False, True])
async def test_bytes_that_are_erased_while_they_are_sent_again_stay_for_the_new_version_alone(
    operator: Operator,
    acme: Tenant,
    files: Files,
    put: Put,
    jobs: JobRunner,
    owner: Database,
    settings: Settings,
    is_lost: bool,
) -> None:
    await operator.push("acme", "bot", files)
    uploading = await begin(operator, put, files)
    query = {"erase": True, "force": True, "aliases": "remove"}
    await operator.done("DELETE", f"{BOT}/versions/v1", params=query)
    if is_lost:
        await run(owner, END_CONNECTIONS)
    working = asyncio.create_task(jobs.run_next())
    put.may_end.set()
    sent = await uploading
    assert await working
    await operator.run_jobs_after(COMES_BACK_S)

    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == "deleted"
    if is_lost:
        assert sent.status_code == 503 and stored(settings) == []
        await operator.run_jobs_after(MAX_PUT_S)
        assert stored(settings) == []
    else:
        assert sent.json()["version"] == "v2" and len(stored(settings)) == 2
        assert (await operator.done("GET", f"{BOT}/versions/v2"))["state"] == "active"


async def test_a_guard_that_comes_due_too_early_removes_nothing_of_what_succeeds(
    operator: Operator,
    acme: Tenant,
    files: Files,
    put: Put,
    jobs: JobRunner,
    settings: Settings,
    context: AppContext,
    owner: Database,
) -> None:
    """A worker that has it in hand finds the bytes locked, does other jobs, and comes back."""
    uploading = await begin(operator, put, files)
    async with context.database.session() as session:
        await worker_scope(session)
        await session.execute(update(AdapterJob).values(not_before=AdapterJob.created_at))
        await session.commit()
    with capture_logs() as logs:
        assert await asyncio.wait_for(jobs.run_next(), 10)
        put.may_end.set()
        assert (await uploading).status_code == 201
    assert "job_failed" not in [each["event"] for each in logs]
    await operator.run_jobs_after(COMES_BACK_S)
    assert len(stored(settings)) == 2
    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == "active"
    async with owner.session() as session:
        assert await session.scalar(text("SELECT count(*) FROM adapter_jobs")) == 0


async def test_a_guard_leaves_what_is_retained_alone_whichever_comes_first(
    operator: Operator, acme: Tenant, files: Files, owner: Database, settings: Settings
) -> None:
    """The deletion is behind: what runs on the bytes has not been ended yet."""
    await run(owner, REFUSE_COMMITS)
    await operator.upload("acme", "bot", files)
    await run(owner, ACCEPT_COMMITS)
    await operator.push("acme", "bot", files)
    await operator.done("DELETE", f"{BOT}/versions/v1", params={"force": True, "aliases": "remove"})
    due = "UPDATE adapter_jobs SET not_before = now() - interval '{}' WHERE is_guard = {}"
    await run(owner, [due.format("2 hours", "true"), due.format("1 hour", "false")])
    await operator.run_jobs()
    assert len(stored(settings)) == 2
    assert (await operator.done("POST", f"{BOT}/versions/v1/restore"))["state"] == "active"


async def test_one_guard_does_the_work_of_all_that_are_over(
    operator: Operator, acme: Tenant, files: Files, owner: Database, settings: Settings
) -> None:
    await run(owner, REFUSE_COMMITS)
    for _ in range(3):
        await operator.upload("acme", "bot", files)
    await run(owner, ACCEPT_COMMITS)
    old = "UPDATE adapter_jobs SET created_at = created_at - interval '1 hour' WHERE id <> ({})"
    newest = "SELECT id FROM adapter_jobs ORDER BY created_at DESC LIMIT 1"
    first = "UPDATE adapter_jobs SET not_before = now() WHERE id = ({})"
    oldest = "SELECT id FROM adapter_jobs ORDER BY created_at LIMIT 1"
    await run(owner, [old.format(newest), first.format(oldest)])
    await operator.run_jobs()
    assert stored(settings) == []
    async with owner.session() as session:
        left = await session.scalar(text("SELECT count(*) FROM adapter_jobs"))
    assert left == 1, "whose upload may not have begun to put its bytes"
