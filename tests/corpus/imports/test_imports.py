"""Imports from real web servers: what comes, what is refused, what is told, what goes on."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.context import AppContext
from app.db import Database
from app.settings import Settings
from tests.builders.adapter_files import adapter_config
from tests.builders.clock import Clock
from tests.builders.https_server import Answer, HttpsServer, Redirect, Status
from tests.builders.operator import Operator, Tenant
from tests.corpus.imports.conftest import IMPORTS, Importing, Names, new_runner
from tests.fixtures.servers import TestDatabase

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
COMMIT, LATER = "a" * 40, "b" * 40
TOKEN = "hf_a-very-secret-token"


def hang(release: threading.Event) -> None:
    release.wait(30)


def error_of(job: dict[str, Any]) -> str:
    assert job["state"] == "failed", job
    code: str = job["error"]["code"]
    return code


async def test_a_folder_of_a_web_server_becomes_a_version(
    importing: Importing, operator: Operator, models: HttpsServer, files: dict[str, bytes]
) -> None:
    models.publish("bots/one", files)
    job = await importing.run(f"{models.url}/bots/one")

    assert job["state"] == "succeeded"
    assert job["bytes_done"] == job["bytes_total"] == sum(map(len, files.values()))
    await operator.run_jobs()
    version = await operator.done("GET", "/tenants/acme/adapters/bot/versions/v1")
    assert (version["id"], version["state"]) == (job["version_id"], "active")
    sent = {file["name"]: file["sha256"] for file in version["files"]}
    assert sent == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert {asked.host for asked in models.asked} == {f"models.test:{models.port}"}


async def test_a_repository_is_held_to_the_commit_that_it_was_at(
    importing: Importing, hub: HttpsServer, files: dict[str, bytes], clock: Clock
) -> None:
    listing = "/api/models/acme-org/bot/revision/main"
    hub.published[listing] = json.dumps({"sha": COMMIT}).encode()
    hub.publish(f"acme-org/bot/resolve/{COMMIT}", files)
    hub.published[f"/acme-org/bot/resolve/{COMMIT}/{WEIGHTS}"] = Status(503)
    job = await importing.run("hf://acme-org/bot")
    assert (job["state"], job["revision"]) == ("queued", COMMIT)

    hub.published[listing] = json.dumps({"sha": LATER}).encode()
    hub.publish(f"acme-org/bot/resolve/{COMMIT}", files)
    clock.advance(600)
    assert await importing.runner.run_next()
    job = await importing.get(job)
    assert (job["state"], job["revision"]) == ("succeeded", COMMIT)


@pytest.mark.parametrize(
    "listing", [b"[]", b"{}", b"{", b'{"sha": "main"}', b'{"sha": "../../etc"}', b"x" * (9 << 20)]
)
async def test_a_hub_that_names_no_commit(
    importing: Importing, hub: HttpsServer, listing: bytes
) -> None:
    hub.published["/api/models/acme-org/bot/revision/v1"] = listing
    job = await importing.run("hf://acme-org/bot@v1")
    assert job["state"] == "queued" and job["revision"] is None  # it may go better later


async def test_a_token_goes_to_the_host_that_it_is_for_and_to_no_other(
    importing: Importing, hub: HttpsServer, models: HttpsServer, files: dict[str, bytes]
) -> None:
    """The Hub redirects to where its large files are."""
    hub.published["/api/models/acme-org/bot/revision/main"] = json.dumps({"sha": COMMIT}).encode()
    hub.publish(f"acme-org/bot/resolve/{COMMIT}", files)
    hub.published[f"/acme-org/bot/resolve/{COMMIT}/{WEIGHTS}"] = Redirect(f"{models.url}/blob/1")
    models.published["/blob/1"] = files[WEIGHTS]
    job = await importing.run("hf://acme-org/bot", token=TOKEN)
    assert job["state"] == "succeeded"
    assert {asked.token for asked in hub.asked} == {f"Bearer {TOKEN}"}
    assert {asked.token for asked in models.asked} == {None}


async def test_a_token_is_shown_by_nothing_and_is_gone_when_the_import_ends(
    importing: Importing,
    operator: Operator,
    models: HttpsServer,
    database: TestDatabase,
    capfd: pytest.CaptureFixture[str],
    files: dict[str, bytes],
) -> None:
    job = await importing.begin(f"{models.url}/bots/one", token=TOKEN)
    rows = await _rows(database)
    assert TOKEN not in rows and '"sealed_token":"' in rows  # the control: something is kept
    models.publish("bots/one", files)
    assert await importing.runner.run_next()

    shown = json.dumps([job, await importing.get(job), await operator.done("GET", IMPORTS)])
    log = json.dumps(await operator.done("GET", "/audit/acme", params={"limit": 100}))
    events = (await operator.call("GET", f"{IMPORTS}/{job['id']}/events")).text
    rows = await _rows(database)
    assert '"sealed_token":null' in rows
    printed = "".join(capfd.readouterr())
    assert "import_ended" in printed
    for place in (shown, log, events, rows, printed):
        assert TOKEN not in place
    assert models.asked[0].token == f"Bearer {TOKEN}"


async def test_a_token_that_is_refused_is_not_sent_back(operator: Operator, acme: Tenant) -> None:
    for token in ("x" * 5000, ["secret-in-a-list"]):
        body = {"source": "hf://acme-org/bot", "token": token}
        response = await operator.call("POST", IMPORTS, json=body)
        assert response.status_code == 400
        assert "xxxx" not in response.text and "secret" not in response.text


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (404, "import_source_not_found"),
        (401, "import_source_unauthorized"),
        (400, "import_source_failed"),
    ],
)
async def test_what_a_server_refuses_for_good(
    importing: Importing, models: HttpsServer, status: int, code: str
) -> None:
    models.published[f"/bots/one/{CONFIG}"] = Status(status)
    assert error_of(await importing.run(f"{models.url}/bots/one")) == code


async def test_a_server_that_is_away_is_asked_again_and_not_for_ever(
    importing: Importing, models: HttpsServer, clock: Clock, files: dict[str, bytes]
) -> None:
    models.published[f"/bots/one/{CONFIG}"] = Status(503)
    job = await importing.run(f"{models.url}/bots/one")
    assert job["state"] == "queued"
    assert not await importing.runner.run_next()  # not at once
    for _ in range(3):
        clock.advance(600)
        assert await importing.runner.run_next()
    assert error_of(await importing.get(job)) == "import_source_failed"
    assert len(models.asked) == 4


async def test_a_file_over_the_limit_by_its_own_word_is_not_read(
    importing: Importing, models: HttpsServer, files: dict[str, bytes], settings: Settings
) -> None:
    read = threading.Event()
    models.publish("bots/one", files)

    def body(write: Callable[[bytes], None]) -> None:
        for _ in range(1000):
            write(bytes(10_000))
        read.set()

    models.published[f"/bots/one/{WEIGHTS}"] = Answer(body, length=10_000_000)
    assert error_of(await importing.run(f"{models.url}/bots/one")) == "file_too_large"
    assert not read.is_set()
    assert list((settings.data_dir / "uploads").iterdir()) == []


async def test_a_file_that_does_not_say_how_long_it_is_ends_at_the_limit(
    importing: Importing, models: HttpsServer, files: dict[str, bytes], settings: Settings
) -> None:
    models.publish("bots/one", files)

    def endless(write: Callable[[bytes], None]) -> None:
        while True:
            write(bytes(10_000))

    models.published[f"/bots/one/{WEIGHTS}"] = Answer(endless)
    job = await importing.run(f"{models.url}/bots/one")
    assert error_of(job) == "file_too_large"
    assert job["bytes_done"] <= settings.max_upload_bytes + 2_000
    assert list((settings.data_dir / "uploads").iterdir()) == []


async def test_a_file_that_ends_too_early_is_fetched_again(
    importing: Importing, models: HttpsServer, files: dict[str, bytes]
) -> None:
    models.publish("bots/one", files)

    def cut(write: Callable[[bytes], None]) -> None:
        write(files[WEIGHTS][:100])
        raise OSError

    models.published[f"/bots/one/{WEIGHTS}"] = Answer(cut, length=len(files[WEIGHTS]))
    assert (await importing.run(f"{models.url}/bots/one"))["state"] == "queued"


async def test_what_would_have_to_be_unpacked_is_not(
    importing: Importing, models: HttpsServer, files: dict[str, bytes], clock: Clock
) -> None:
    bomb = Answer(lambda write: write(b"\x1f\x8b"), headers={"content-encoding": "gzip"})
    models.published[f"/bots/one/{CONFIG}"] = bomb
    job = await importing.run(f"{models.url}/bots/one")
    assert job["state"] == "queued" and job["bytes_done"] == 0


async def test_an_import_that_takes_too_long_ends(
    importing: Importing, context: AppContext, names: Names, models: HttpsServer
) -> None:
    release = threading.Event()
    models.published[f"/bots/one/{CONFIG}"] = Answer(lambda _: hang(release), length=10)
    settings = context.settings.model_copy(update={"import_timeout_s": 0.3})
    runner = new_runner(replace(context, settings=settings), names)
    job = await importing.begin(f"{models.url}/bots/one")
    try:
        assert await runner.run_next()
    finally:
        release.set()
    assert error_of(await importing.get(job)) == "import_timeout"


async def test_another_file_than_was_said(
    importing: Importing, models: HttpsServer, files: dict[str, bytes]
) -> None:
    models.publish("bots/one", files)
    source = f"{models.url}/bots/one"
    assert error_of(await importing.run(source, sha256="0" * 64)) == "digest_mismatch"
    right = hashlib.sha256(files[WEIGHTS]).hexdigest()
    assert (await importing.run(source, sha256=right))["state"] == "succeeded"


async def test_a_refusal_is_told_with_all_its_findings(
    importing: Importing, operator: Operator, models: HttpsServer, files: dict[str, bytes]
) -> None:
    models.publish("bots/one", files | {CONFIG: adapter_config(task_type="SEQ_CLS")})
    job = await importing.run(f"{models.url}/bots/one")
    assert error_of(job) == "task_type_unsupported"
    assert job["error"]["report"]["status"] == "rejected"
    assert (await operator.done("GET", "/tenants/acme/adapters/bot/versions"))["data"] == []


async def test_imports_count_as_uploads(
    operator: Operator, acme: Tenant, models: HttpsServer
) -> None:
    await operator.done("PUT", "/tenants/acme/limits", json={"limits": {"uploads_per_day": 1}})
    body = {"source": f"{models.url}/bots/one"}
    assert (await operator.call("POST", IMPORTS, json=body)).status_code == 202
    response = await operator.call("POST", IMPORTS, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "quota_exceeded")


async def test_tenants_import_for_themselves_and_see_no_other(
    importing: Importing,
    operator: Operator,
    api: httpx.AsyncClient,
    acme: Tenant,
    models: HttpsServer,
    files: dict[str, bytes],
) -> None:
    models.publish("bots/one", files)
    path = "/v1/adapters/bot/imports"
    body = {"source": f"{models.url}/bots/one"}
    response = await api.post(path, json=body, headers=acme.headers)
    assert response.status_code == 202
    assert await importing.runner.run_next()
    mine = await api.get(f"{path}/{response.json()['id']}", headers=acme.headers)
    assert mine.json()["state"] == "succeeded"

    globex = await operator.new_tenant("globex")
    await operator.new_adapter("globex", "bot")
    foreign, absent = [
        await api.get(f"{path}/{name}", headers=globex.headers)
        for name in (response.json()["id"], f"imp_{'0' * 26}")
    ]
    assert foreign.status_code == absent.status_code == 404
    assert foreign.content == absent.content


async def _rows(database: TestDatabase) -> str:
    """All imports, as the database's owner sees them."""
    owner = Database(database.owner_url, pool_size=1)
    async with owner.session() as session:
        found = await session.scalar(text("SELECT json_agg(row_to_json(i))::text FROM imports i"))
    await owner.close()
    return str(found)
