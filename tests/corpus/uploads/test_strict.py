"""Where an upload asks for it every warning refuses, on each way in; otherwise none does."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import update

from app.adapters.certifier import Trial
from app.adapters.verification import Verifier, verify_version
from app.context import AppContext
from app.db import tenant_scope
from app.tables import AdapterVersion
from lora.findings import REFUSALS, WARNINGS, Finding, ManifestError, strictly
from lora.store import CONFIG_FILE
from tests.builders.adapter_files import adapter_config
from tests.builders.operator import Operator, Tenant
from tests.builders.part_sender import PartSender

BOT = "/tenants/acme/adapters/bot"
UNKNOWN_BASE = "somebody/some-model"
Files = dict[str, bytes]
WARNED = {"severity": "warning", "message": "The base's own scores."}
NO_EFFECT = Finding("no_effect", "warning", WARNED["message"])


@pytest.fixture
def unverified(files: Files) -> Files:
    """Of a base that nobody knows: a warning of its structure."""
    config = adapter_config(base_model_name_or_path=UNKNOWN_BASE, lora_alpha=-4)
    return {**files, CONFIG_FILE: config}


def told(error: dict[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    checks = error["report"]["checks"]
    return error["code"], sorted((each["rule"], each["severity"]) for each in checks)


REFUSED = (
    "base_model_unverified",
    [("base_model_unverified", "error"), ("scaling_unusual", "error")],
)


async def test_a_warning_refuses_an_upload_and_a_dry_run(
    operator: Operator, acme: Tenant, unverified: Files
) -> None:
    parts = {name: (name, content) for name, content in unverified.items()}
    dry = await operator.call("POST", f"{BOT}/validate", files=parts, params={"strict": True})
    upload = await operator.upload("acme", "bot", unverified, strict=True)
    for response in (dry, upload):
        assert response.status_code == 422
        assert told(response.json()["error"]) == REFUSED
    assert (await operator.done("GET", f"{BOT}/versions"))["data"] == []
    # Control: without the word both are accepted.
    assert (await operator.call("POST", f"{BOT}/validate", files=parts)).status_code == 200
    assert (await operator.push("acme", "bot", unverified))["state"] == "active"


async def test_what_was_accepted_is_refused_to_whoever_sends_it_again_and_wants_it_faultless(
    operator: Operator, acme: Tenant, files: Files, context: AppContext
) -> None:
    version = await operator.push("acme", "bot", files)
    report = {**version["report"], "checks": [{"rule": "no_effect", **WARNED}]}
    async with context.database.session() as session:
        await tenant_scope(session, acme.id)
        await session.execute(update(AdapterVersion).values(report=report))
        await session.commit()
    again = await operator.upload("acme", "bot", files, strict=True)
    assert told(again.json()["error"]) == ("no_effect", [("no_effect", "error")])
    shown = await operator.done("GET", f"{BOT}/versions/v1")
    assert (shown["state"], shown["report"]) == ("active", report)
    assert (await operator.upload("acme", "bot", files)).json()["id"] == version["id"]


async def test_a_warning_refuses_an_upload_in_parts_for_good(
    sender: PartSender, unverified: Files
) -> None:
    upload = await sender.begin(unverified)
    await sender.send_all(upload, unverified)
    path = f"{sender.path}/{upload['id']}/complete"
    for _ in range(2):
        response = await sender.call("POST", path, params={"strict": True})
        assert response.status_code == 422
        assert told(response.json()["error"]) == REFUSED


@pytest.mark.parametrize(("strict", "state"), [(True, "rejected"), (False, "active")])
async def test_what_only_the_trial_tells_rejects_the_version(
    operator: Operator,
    acme: Tenant,
    files: Files,
    context: AppContext,
    strict: bool,
    state: str,
) -> None:
    response = await operator.upload("acme", "bot", files, strict=strict)
    took_ms = response.json()["report"]["duration_ms"]
    await verify(context, acme, response)
    shown = await operator.done("GET", f"{BOT}/versions/v1")
    (check,) = shown["report"]["checks"]
    assert (shown["state"], check["rule"]) == (state, "no_effect")
    assert shown["report"]["duration_ms"] >= took_ms > 0
    assert check["severity"] == ("error" if strict else "warning")


@pytest.mark.parametrize(("activate", "state"), [(False, "validated"), (True, "active")])
async def test_what_was_rejected_is_meant_as_whoever_sends_it_again_says(
    operator: Operator,
    acme: Tenant,
    files: Files,
    context: AppContext,
    activate: bool,
    state: str,
) -> None:
    told = {"strict": True, "activate": not activate}
    await verify(context, acme, await operator.upload("acme", "bot", files, **told))
    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == "rejected"

    await verify(context, acme, await operator.upload("acme", "bot", files, activate=activate))

    assert (await operator.done("GET", f"{BOT}/versions/v1"))["state"] == state
    aliases = {"prod": "v1"} if activate else {}
    assert (await operator.done("GET", BOT))["aliases"] == aliases


async def verify(context: AppContext, tenant: Tenant, response: httpx.Response) -> None:
    """As a worker does whose engine finds no difference to the base."""
    assert response.status_code == 201, response.text
    verifier = Verifier(context.validator, context.store, context.base, certifier=WithoutEffect())
    async with context.database.session() as session:
        await tenant_scope(session, tenant.id)
        await verify_version(session, verifier, tenant.id, response.json()["id"], context.now())
        await session.commit()


class WithoutEffect:
    """An engine that finds no difference to the base."""

    async def certify(self, tenant_id: str, digest: str, locator: str) -> Trial:
        return Trial((NO_EFFECT,), certificate="of-an-engine")

    def is_valid(self, digest: str, certificate: str) -> bool:
        return True


def test_the_first_in_table_order_names_the_refusal_and_warnings_come_last() -> None:
    found = [Finding(code, "warning", code) for code in reversed(WARNINGS)]
    error = ManifestError(strictly(found))
    assert (error.code, error.status) == (next(iter(WARNINGS)), 422)
    last = list(REFUSALS)[-1]
    mixed = ManifestError(strictly([*found, Finding(last, "error", last)]))
    assert mixed.code == last
