"""Uploads in parts: any order, any process, any number of tries; one version."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from app.api import create_app
from app.context import AppContext, open_context
from app.db import tenant_scope
from app.settings import Settings
from app.uploads.jobs import UploadJobs
from app.uploads.quotas_repository import QuotaRepository
from app.uploads.repository import UploadRepository
from tests.builders.adapter_files import adapter_config
from tests.builders.clock import Clock
from tests.builders.operator import OPERATOR, Operator, Tenant
from tests.builders.part_sender import PartSender
from tests.builders.waiting import eventually

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
DAY_S = 86_400


def kept_parts(settings: Settings) -> list[Path]:
    folder = Path(settings.adapter_store) / ".uploads"
    return [path for path in folder.rglob("*") if path.is_file()]


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_parts_in_any_order_make_the_version_that_a_single_upload_makes(
    sender: PartSender, operator: Operator, files: dict[str, bytes], acme: Tenant, globex: Tenant
) -> None:
    upload = await sender.begin(files)
    parts = sender.parts(upload, files)
    assert len(parts) > 4 and {file["part_size"] for file in upload["files"]} == {1500}
    random.Random(0).shuffle(parts)
    for part, content in parts:
        assert (await sender.put(part, content)).status_code == 200

    response = await sender.complete(upload)
    assert response.status_code == 202, response.text
    assert response.json()["state"] == "verifying"
    await operator.run_jobs()
    version = await operator.done("GET", "/tenants/acme/adapters/bot/versions/v1")
    single = await operator.push("globex", "bot", files)
    assert version["state"] == "active" and version["digest"] == single["digest"]
    assert (await sender.get(upload))["version_id"] == version["id"]


async def test_completing_waits_for_the_check_where_it_is_asked_to(
    sender: PartSender, operator: Operator, files: dict[str, bytes], acme: Tenant
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    path = f"{sender.path}/{upload['id']}/complete"
    completing = asyncio.create_task(sender.call("POST", path, params={"wait": 30}))
    while not completing.done():
        await operator.run_jobs()
        await asyncio.sleep(0.05)
    response = await completing
    assert (response.status_code, response.json()["state"]) == (202, "active")


async def test_another_process_goes_on_where_one_was_killed(
    sender: PartSender,
    settings: Settings,
    clock: Clock,
    files: dict[str, bytes],
    acme: Tenant,
) -> None:
    upload = await sender.begin(files)
    parts = sender.parts(upload, files)
    for part, content in parts[:2]:
        await sender.put(part, content)

    elsewhere = settings.model_copy(update={"data_dir": settings.data_dir / "elsewhere"})
    async with (
        open_context(elsewhere, clock.now) as context,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(context)), base_url="http://other.test"
        ) as client,
    ):
        other = PartSender(client, acme.headers, sender.path)
        shown = await other.get(upload)
        received = {(file["path"], n) for file in shown["files"] for n in file["received"]}
        assert len(received) == 2
        for file in shown["files"]:
            for part in file["parts"]:
                if (file["path"], part["n"]) not in received:
                    offset = (part["n"] - 1) * file["part_size"]
                    content = files[file["path"]][offset : offset + part["bytes"]]
                    assert (await other.put(part, content)).status_code == 200
        assert (await other.complete(upload)).status_code == 202


async def test_completing_again_gives_the_same_version(
    sender: PartSender, files: dict[str, bytes]
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    first = await sender.complete(upload)
    again = await sender.complete(upload)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["id"] == again.json()["id"]


async def test_of_several_that_complete_at_once_one_makes_the_version(
    sender: PartSender, operator: Operator, files: dict[str, bytes]
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    responses = await asyncio.gather(*(sender.complete(upload) for _ in range(4)))
    statuses = sorted(response.status_code for response in responses)
    assert statuses.count(202) == 1 and set(statuses) <= {200, 202, 409}
    refused = [response for response in responses if response.status_code == 409]
    assert {code(each) for each in refused} <= {(409, "upload_already_completed")}
    versions = await operator.done("GET", "/tenants/acme/adapters/bot/versions")
    assert len(versions["data"]) == 1


async def test_what_is_missing_is_listed_by_number(
    sender: PartSender, files: dict[str, bytes]
) -> None:
    upload = await sender.begin(files)
    parts = [each for each in sender.parts(upload, files) if each[0]["n"] != 2]
    for part, content in parts:
        await sender.put(part, content)
    response = await sender.complete(upload)
    assert code(response) == (409, "upload_incomplete")
    assert response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["missing"] == [{"path": WEIGHTS, "parts": [2]}]

    await sender.send_all(upload, files)
    assert (await sender.complete(upload)).status_code == 202


async def test_a_part_sent_again_takes_the_place_of_the_first(
    sender: PartSender, files: dict[str, bytes]
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    part, content = sender.parts(upload, files)[-1]
    assert (await sender.put(part, bytes(len(content)))).status_code == 200
    wrong = await sender.complete(upload)
    assert code(wrong) == (422, "digest_mismatch")
    assert wrong.json()["error"]["files"][0]["path"] == WEIGHTS

    assert (await sender.put(part, content)).status_code == 200
    assert (await sender.complete(upload)).status_code == 202


async def test_a_refusal_of_the_files_is_told_again_and_their_parts_go(
    sender: PartSender,
    files: dict[str, bytes],
    settings: Settings,
    upload_jobs: UploadJobs,
    clock: Clock,
) -> None:
    files = files | {CONFIG: adapter_config(task_type="SEQ_CLS")}
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    first, again = await sender.complete(upload), await sender.complete(upload)
    assert code(first) == code(again) == (422, "task_type_unsupported")
    assert first.json() == again.json() and "report" in first.json()["error"]
    assert (await sender.get(upload))["state"] == "rejected"

    assert kept_parts(settings)
    clock.advance(120)
    await upload_jobs.run_once()
    assert kept_parts(settings) == []


async def test_what_the_tenant_has_already_is_not_sent_again(
    sender: PartSender, operator: Operator, files: dict[str, bytes], globex: Tenant
) -> None:
    await operator.push("acme", "bot", files)
    changed = files | {CONFIG: adapter_config(lora_alpha=4)}
    upload = await sender.begin(changed)
    skipped = {file["path"]: file["skip_upload"] for file in upload["files"]}
    assert skipped == {WEIGHTS: True, CONFIG: False}
    await sender.send_all(upload, changed)
    assert (await sender.complete(upload)).status_code == 202

    theirs = PartSender(sender.client, globex.headers, sender.path)
    upload = await theirs.begin(files)  # another tenant learns nothing of it
    assert not any(file["skip_upload"] for file in upload["files"])


async def test_bytes_that_were_counted_on_and_are_gone_are_asked_for(
    sender: PartSender, operator: Operator, files: dict[str, bytes], context: AppContext
) -> None:
    version = await operator.push("acme", "bot", files)
    changed = files | {CONFIG: adapter_config(lora_alpha=4)}
    upload = await sender.begin(changed)
    await sender.send_all(upload, changed)
    tenant_id = (await operator.done("GET", "/tenants/acme"))["id"]
    context.store.delete(f"{tenant_id}/{version['digest'].removeprefix('sha256:')}")

    assert code(await sender.complete(upload)) == (409, "upload_incomplete")
    again = await sender.get(upload)
    assert not any(file["skip_upload"] for file in again["files"])
    await sender.send_all(again, changed)
    assert (await sender.complete(upload)).status_code == 202


async def test_a_part_that_the_store_lost_is_asked_for(
    sender: PartSender, files: dict[str, bytes], settings: Settings
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    lost = next(path for path in kept_parts(settings) if path.name.startswith("2-"))
    lost.unlink()
    response = await sender.complete(upload)
    assert code(response) == (409, "upload_incomplete")
    assert response.json()["error"]["missing"] == [{"path": WEIGHTS, "parts": [2]}]
    assert 2 not in next(
        file["received"] for file in (await sender.get(upload))["files"] if file["path"] == WEIGHTS
    )


async def test_a_cancelled_upload_takes_nothing_more_and_its_parts_go(
    sender: PartSender,
    files: dict[str, bytes],
    settings: Settings,
    upload_jobs: UploadJobs,
    clock: Clock,
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    cancelled, again = await sender.cancel(upload), await sender.cancel(upload)
    assert cancelled.json()["state"] == again.json()["state"] == "cancelled"
    part, content = sender.parts(upload, files)[0]
    assert code(await sender.put(part, content)) == (409, "upload_cancelled")
    assert code(await sender.complete(upload)) == (409, "upload_cancelled")
    assert kept_parts(settings)
    clock.advance(120)
    assert await upload_jobs.run_once() == 1
    assert kept_parts(settings) == [] and await upload_jobs.run_once() == 0


async def test_an_upload_that_nobody_completes_expires_and_its_parts_go(
    sender: PartSender,
    files: dict[str, bytes],
    settings: Settings,
    upload_jobs: UploadJobs,
    clock: Clock,
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    assert await upload_jobs.run_once() == 0 and kept_parts(settings)  # the control

    clock.advance(DAY_S + 1)
    assert code(await sender.complete(upload)) == (409, "upload_expired")
    assert await upload_jobs.run_once() == 1
    assert (await sender.get(upload))["state"] == "expired"
    assert kept_parts(settings) == []


async def test_the_parts_of_a_completed_upload_go(
    sender: PartSender,
    files: dict[str, bytes],
    settings: Settings,
    upload_jobs: UploadJobs,
    clock: Clock,
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    await sender.complete(upload)
    clock.advance(120)
    await upload_jobs.run_once()
    assert kept_parts(settings) == []
    assert (await sender.complete(upload)).status_code == 200


@pytest.mark.parametrize("what", ["adapter", "tenant"])
async def test_parts_of_what_is_deleted_go_with_the_next_look(
    sender: PartSender,
    operator: Operator,
    files: dict[str, bytes],
    settings: Settings,
    upload_jobs: UploadJobs,
    clock: Clock,
    what: str,
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    path = "/tenants/acme/adapters/bot" if what == "adapter" else "/tenants/acme"
    await operator.done("DELETE", path)
    clock.advance(60)
    assert await upload_jobs.run_once() == 1
    assert kept_parts(settings) == [] and await upload_jobs.run_once() == 0


async def test_a_claim_whose_process_died_is_taken_over(
    sender: PartSender, files: dict[str, bytes], context: AppContext, clock: Clock, acme: Tenant
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    await _leave_claimed(context, acme.id, upload["id"], clock)
    assert code(await sender.complete(upload)) == (409, "upload_already_completed")
    clock.advance(301)
    assert (await sender.complete(upload)).status_code == 202


async def test_a_completer_whose_claim_lapsed_does_not_end_the_next_ones(
    sender: PartSender, files: dict[str, bytes], context: AppContext, clock: Clock, acme: Tenant
) -> None:
    upload = await sender.begin(files)
    await sender.send_all(upload, files)

    async def is_claimed() -> bool:
        return bool((await sender.get(upload))["state"] == "completing")

    async with context.database.session() as session:  # what the first one waits for meanwhile
        await tenant_scope(session, acme.id)
        await QuotaRepository(session, acme.id).lock()
        first = asyncio.create_task(sender.complete(upload))
        await eventually(is_claimed)
        clock.advance(301)
        await _leave_claimed(context, acme.id, upload["id"], clock)
    assert (await first).status_code == 202
    assert await is_claimed()
    clock.advance(301)
    again = await sender.complete(upload)
    assert again.json()["id"] == (await first).json()["id"]
    assert (await sender.get(upload))["state"] == "completed"


async def test_operators_have_the_same_routes_and_both_leave_a_trace(
    admin: httpx.AsyncClient, operator: Operator, files: dict[str, bytes], acme: Tenant
) -> None:
    sender = PartSender(admin, OPERATOR, "/admin/v1/tenants/acme/adapters/bot/uploads")
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    assert (await sender.complete(upload)).status_code == 202
    listed = (await sender.call("GET", sender.path)).json()
    assert [row["id"] for row in listed["data"]] == [upload["id"]]
    log = await operator.done("GET", "/audit/acme", params={"limit": 100})
    actions = [event["action"] for event in log["data"]]
    assert "upload.created" in actions and "version.uploaded" in actions


async def _leave_claimed(context: AppContext, tenant_id: str, upload_id: str, clock: Clock) -> None:
    """As a process leaves it that is killed while it puts the files together."""
    async with context.database.session() as session:
        await tenant_scope(session, tenant_id)
        upload = await UploadRepository(session, tenant_id).lock(upload_id)
        assert upload is not None
        upload.state, upload.claimed_until = "completing", clock.now() + timedelta(minutes=5)
        await session.commit()
