"""Each version says where it comes from: who brought it, how, from where, under which licence."""

from __future__ import annotations

import json

import httpx
import pytest

from lora.store import CONFIG_FILE
from tests.builders.adapter_files import adapter_config
from tests.builders.https_server import HttpsServer
from tests.builders.operator import Operator, Tenant
from tests.builders.part_sender import PartSender
from tests.corpus.imports.conftest import Importing

BOT = "/tenants/acme/adapters/bot"
Files = dict[str, bytes]
COMMIT = "c" * 40
NOWHERE = {"source": None, "revision": None}


async def provenance(operator: Operator, version: str) -> dict[str, object]:
    shown = await operator.done("GET", f"{BOT}/versions/{version}")
    found: dict[str, object] = shown["provenance"]
    return found


async def test_of_an_upload_by_the_operator_and_by_a_tenant(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, files: Files
) -> None:
    await operator.upload("acme", "bot", files, license="apache-2.0")
    config = {CONFIG_FILE: adapter_config(lora_alpha=3)}
    parts = {name: (name, content) for name, content in {**files, **config}.items()}
    await api.post("/v1/adapters/bot/versions", files=parts, headers=acme.headers)

    by_operator = {"uploaded_by": "operator", "via": "upload", "license": "apache-2.0", **NOWHERE}
    by_tenant = {"uploaded_by": acme.key_id, "via": "upload", "license": None, **NOWHERE}
    assert await provenance(operator, "v1") == by_operator
    assert await provenance(operator, "v2") == by_tenant
    # Who sends the same again has not made it.
    again = {name: (name, content) for name, content in files.items()}
    sent = await api.post("/v1/adapters/bot/versions", files=again, headers=acme.headers)
    assert sent.json()["provenance"] == by_operator


async def state_of(operator: Operator, version: str) -> str:
    """What becomes of it."""
    await operator.run_jobs()
    return str((await operator.done("GET", f"{BOT}/versions/{version}"))["state"])


async def test_of_an_upload_in_parts(
    operator: Operator, api: httpx.AsyncClient, acme: Tenant, files: Files
) -> None:
    sender = PartSender(api, acme.headers, "/v1/adapters/bot/uploads")
    upload = await sender.begin(files)
    await sender.send_all(upload, files)
    path = f"{sender.path}/{upload['id']}/complete"
    await sender.call("POST", path, params={"license": "cc-by-4.0", "activate": False})
    assert await provenance(operator, "v1") == {
        "uploaded_by": acme.key_id,
        "via": "parts",
        "license": "cc-by-4.0",
        **NOWHERE,
    }
    assert await state_of(operator, "v1") == "validated"


async def test_of_an_import_with_its_source_and_what_that_meant_and_without_its_token(
    importing: Importing, hub: HttpsServer, files: Files
) -> None:
    hub.published["/api/models/acme-org/bot/revision/main"] = json.dumps({"sha": COMMIT}).encode()
    hub.publish(f"acme-org/bot/resolve/{COMMIT}", files)
    source = "hf://acme-org/bot@main"
    job = await importing.run(source, token="hf_secret", license="mit", activate=False)
    assert (job["state"], job["license"], job["strict"]) == ("succeeded", "mit", False)
    assert job["activate"] is False
    assert await provenance(importing.operator, "v1") == {
        "uploaded_by": "operator",
        "via": "import",
        "source": source,
        "revision": COMMIT,
        "license": "mit",
    }
    assert await state_of(importing.operator, "v1") == "validated"


@pytest.mark.parametrize("license", ["", "x" * 129, "a\x00b"])
async def test_a_licence_that_cannot_be_kept_is_refused(
    operator: Operator, acme: Tenant, files: Files, license: str
) -> None:
    response = await operator.upload("acme", "bot", files, license=license)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "license"


@pytest.mark.parametrize(("strict", "state"), [(True, "failed"), (False, "succeeded")])
async def test_a_warning_fails_an_import_where_that_was_asked_for(
    importing: Importing, models: HttpsServer, files: Files, strict: bool, state: str
) -> None:
    config = adapter_config(base_model_name_or_path="somebody/some-model")
    models.publish("bots/one", {**files, CONFIG_FILE: config})
    job = await importing.run(f"{models.url}/bots/one", strict=strict)
    assert job["state"] == state
    assert (job["error"] or {}).get("code") == ("base_model_unverified" if strict else None)
    if not strict:  # the control: active, where nobody says that it is not to be
        assert job["activate"] and await state_of(importing.operator, "v1") == "active"
