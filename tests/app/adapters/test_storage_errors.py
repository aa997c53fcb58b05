"""Uploads while their bytes cannot be kept: a named 503, and no trace."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from app.api import create_admin_app
from app.context import AppContext
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.failing_disk import FailingDisk
from tests.builders.operator import OPERATOR, Operator


@pytest.mark.parametrize(
    ("error", "code"),
    [(errno.ENOSPC, "storage_full"), (errno.EDQUOT, "storage_full"), (errno.EIO, None)],
)
async def test_an_upload_that_cannot_be_kept_is_refused_by_name_and_leaves_nothing(
    context: AppContext, operator: Operator, tiny_base: BaseSpec, error: int, code: str | None
) -> None:
    await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")
    failing = replace(context, store=FailingDisk(context.store, error))
    path = "/tenants/acme/adapters/bot/versions"
    files = adapter_files(tiny_base)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_admin_app(failing)),
        base_url="http://tenfold.test",
        headers=OPERATOR,
    ) as client:
        sent = {name: (name, content) for name, content in files.items()}
        response = await client.post(f"/admin/v1{path}", files=sent)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == (code or "dependency_unavailable")
    assert "secret" not in response.text
    assert (await operator.done("GET", path))["data"] == []
    staged = context.settings.data_dir / "uploads"
    assert list(staged.iterdir()) == []

    assert (await operator.push("acme", "bot", files))["state"] == "active"


async def test_a_store_that_is_away_rejects_no_version(
    context: AppContext, operator: Operator, tiny_base: BaseSpec, tmp_path: Path
) -> None:
    """The check is put off: nothing is known of the bytes."""
    await operator.new_tenant("acme")
    await operator.new_adapter("acme", "bot")
    response = await operator.upload("acme", "bot", adapter_files(tiny_base))
    assert response.status_code == 201
    store, elsewhere = Path(context.settings.adapter_store), tmp_path / "elsewhere"
    await asyncio.to_thread(store.rename, elsewhere)
    await operator.run_jobs()
    path = "/tenants/acme/adapters/bot/versions/v1"
    assert (await operator.done("GET", path))["state"] == "verifying"

    await asyncio.to_thread(elsewhere.rename, store)
    await operator.run_jobs_after()
    assert (await operator.done("GET", path))["state"] == "active"
