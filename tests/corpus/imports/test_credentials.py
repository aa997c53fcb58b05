"""A credential of the workers' own is named by operators alone, and shown to nobody."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from app.context import AppContext
from app.settings import Settings
from tests.builders.https_server import HttpsServer
from tests.builders.operator import Operator, Tenant
from tests.corpus.imports.conftest import IMPORTS, Importing, Names, new_runner

CREDENTIAL = "hf_the-workers-own-token"


@pytest.fixture
def importing(importing: Importing, context: AppContext, names: Names) -> Importing:
    """By a worker that has one credential, which the API has not."""
    known = {"import_credentials": SecretStr(f"partner={CREDENTIAL}, other=x=y")}
    settings = context.settings.model_copy(update=known)
    runner = new_runner(replace(context, settings=settings), names)
    return Importing(importing.operator, runner)


async def test_a_named_credential_goes_to_the_source_and_is_in_no_answer(
    importing: Importing, models: HttpsServer, files: dict[str, bytes]
) -> None:
    models.publish("bots/one", files)
    job = await importing.run(f"{models.url}/bots/one", credential_ref="partner")
    assert (job["state"], job["credential_ref"]) == ("succeeded", "partner")
    assert {asked.token for asked in models.asked} == {f"Bearer {CREDENTIAL}"}
    assert CREDENTIAL not in str(job)


async def test_a_credential_that_no_worker_has_fails_the_import(
    importing: Importing, models: HttpsServer, files: dict[str, bytes]
) -> None:
    models.publish("bots/one", files)
    job = await importing.run(f"{models.url}/bots/one", credential_ref="partners")
    assert (job["state"], job["error"]["code"]) == ("failed", "import_credential_unknown")
    assert models.asked == []


async def test_a_tenant_may_not_name_the_workers_credentials(
    api: httpx.AsyncClient, acme: Tenant, models: HttpsServer
) -> None:
    body = {"source": f"{models.url}/bots/one", "credential_ref": "partner"}
    path = "/v1/adapters/bot/imports"
    refused = await api.post(path, json=body, headers=acme.headers)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "import_credential_not_allowed"
    body["token"] = body.pop("credential_ref")  # the control: its own is taken
    assert (await api.post(path, json=body, headers=acme.headers)).status_code == 202


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"source": "hf://acme-org/bot", "token": "x", "credential_ref": "partner"}, 400),
        ({"source": "hf://acme-org/bot", "credential_ref": ""}, 400),
    ],
)
async def test_what_names_no_one_credential_is_refused(
    operator: Operator, acme: Tenant, fields: dict[str, str], status: int
) -> None:
    assert (await operator.call("POST", IMPORTS, json=fields)).status_code == status


def test_credentials_are_read_by_name(settings: Settings) -> None:
    known = settings.model_dump() | {"import_credentials": "a=1, b=x=y"}
    assert Settings(**known).import_tokens == {"a": "1", "b": "x=y"}
    assert settings.import_tokens == {}
    for wrong in ("a", "a=", "=1", "a=1,"):
        with pytest.raises(ValidationError):
            Settings(**known | {"import_credentials": wrong})
