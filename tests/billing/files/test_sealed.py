"""Nothing of a tenant's file is anywhere in clear, and keys can be changed under it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from app.context import AppContext
from app.db import Database, tenant_scope
from app.encryption import EnvelopeKeys, SealBrokenError
from app.files.jobs import FileJobs
from app.files.repository import FileRepository
from app.files.service import body_of
from app.files.store import LocalFileStore
from app.files.tables import StoredFile
from app.files.vault import FileVault
from tests.billing.files.test_files_api import uploaded
from tests.builders.envelope_keys import ENVELOPE_KEYS
from tests.builders.operator import Tenant
from tests.fixtures.servers import TestDatabase

CANARY = b"the-canary-of-this-test"
NEW_KEY = "another-envelope-key-0123456789-abc"


async def stored(context: AppContext, tenant: Tenant, file_id: str) -> StoredFile:
    async with context.database.session() as session:
        await tenant_scope(session, tenant.id)
        found = await FileRepository(session, tenant.id).get(file_id)
    assert found is not None
    return found


async def read(vault: FileVault, file: StoredFile) -> bytes:
    return b"".join([chunk async for chunk in vault.read(body_of(file))])


async def everything(database: TestDatabase, folder: Path) -> bytes:
    """Every row of every table that a file could be in, and every byte of the store."""
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:
        tables = list(
            await session.scalars(
                text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            )
        )
        dumps = [
            await session.scalar(text(f"SELECT coalesce(json_agg(t)::text, '') FROM {table} t"))
            for table in tables
        ]
    await owner.close()
    return "".join(dumps).encode() + b"".join(path.read_bytes() for path in files_in(folder))


def files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


async def test_nothing_of_a_file_is_in_the_store_or_the_registry_in_clear(
    api: httpx.AsyncClient,
    acme: Tenant,
    context: AppContext,
    database: TestDatabase,
    vault: FileVault,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = await uploaded(api, acme, CANARY * 5000)
    assert context.settings.file_store is not None
    kept = await everything(database, Path(context.settings.file_store))
    assert len(kept) > 5000 * len(CANARY)
    assert CANARY not in kept and CANARY.hex().encode() not in kept
    said = capfd.readouterr()
    assert CANARY.decode() not in said.out + said.err
    assert b"notes.txt" in kept  # control: what is in clear is found
    assert CANARY in await read(vault, await stored(context, acme, file["id"]))


async def test_a_file_that_was_damaged_in_the_store_does_not_come_back(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext, vault: FileVault
) -> None:
    file = await uploaded(api, acme, bytes(200_000))
    row = await stored(context, acme, file["id"])
    assert context.settings.file_store is not None
    path = Path(context.settings.file_store) / row.locator
    sealed = path.read_bytes()
    for damaged in (sealed[:-1], sealed[: 2 * (65_536 + 16)], b"\x00" + sealed[1:]):
        path.write_bytes(damaged)
        with pytest.raises(SealBrokenError):
            await read(vault, row)
    path.write_bytes(sealed)
    assert await read(vault, row) == bytes(200_000)


async def test_envelope_keys_change_while_every_file_stays_readable(
    api: httpx.AsyncClient, acme: Tenant, globex: Tenant, context: AppContext, vault: FileVault
) -> None:
    names = [(each, (await uploaded(api, each, CANARY))["id"]) for each in (acme, globex)]
    both = FileVault(vault.store, EnvelopeKeys(f"{NEW_KEY},{ENVELOPE_KEYS}"))
    new = FileVault(vault.store, EnvelopeKeys(NEW_KEY))
    for tenant, file_id in names:
        row = await stored(context, tenant, file_id)
        assert await read(both, row) == CANARY
        with pytest.raises(SealBrokenError):  # control: the old one is still needed
            await read(new, row)

    assert await FileJobs(context.database, both, context.now).rewrap() == 2
    assert await FileJobs(context.database, both, context.now).rewrap() == 0
    for tenant, file_id in names:
        assert await read(new, await stored(context, tenant, file_id)) == CANARY


async def test_keys_that_no_envelope_key_opens_are_left_as_they_are(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext, vault: FileVault
) -> None:
    file = await uploaded(api, acme, CANARY)
    stranger = FileVault(vault.store, EnvelopeKeys(NEW_KEY))
    assert await FileJobs(context.database, stranger, context.now).rewrap() == 0
    assert await read(vault, await stored(context, acme, file["id"])) == CANARY


async def test_keys_that_do_not_open_hold_up_no_others(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext, vault: FileVault
) -> None:
    ids = [(await uploaded(api, acme, CANARY))["id"] for _ in range(5)]
    new = EnvelopeKeys(f"{NEW_KEY},{ENVELOPE_KEYS}")
    async with context.database.session() as session:
        await tenant_scope(session, acme.id)
        for file_id in ids[:3]:  # the first page, and half of the second
            row = await FileRepository(session, acme.id).get(file_id)
            assert row is not None
            row.wrapped_key = row.wrapped_key[:-1] + bytes([row.wrapped_key[-1] ^ 1])
        await session.commit()
    jobs = FileJobs(context.database, FileVault(vault.store, new), context.now, rewrap_page=2)
    assert await jobs.rewrap() == 2
    for file_id in ids[3:]:
        row = await stored(context, acme, file_id)
        assert row.wrapped_key.startswith(new.current_id)


async def test_an_upload_that_breaks_off_leaves_no_byte(
    api: httpx.AsyncClient, acme: Tenant, context: AppContext
) -> None:
    part = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    response = await api.post(
        "/v1/files",
        headers={"content-type": "multipart/form-data; boundary=b", **acme.headers},
        content=part + bytes(2 << 20),
    )
    assert response.json()["error"]["code"] == "length_mismatch"
    assert context.settings.file_store is not None
    assert not files_in(Path(context.settings.file_store))


async def test_what_a_process_left_half_written_goes_with_its_removal(tmp_path: Path) -> None:
    store = LocalFileStore(tmp_path)
    locator = f"ten_{'0' * 26}/fil_{'0' * 26}"
    scratch = tmp_path / locator.replace("fil_", ".fil_")
    scratch.parent.mkdir(parents=True)
    scratch.write_bytes(b"half")
    await store.delete(locator)
    assert not scratch.exists()
    await store.delete(locator)  # a second call does nothing
