"""A chat template that lies beside an adapter is imported with it; none need be there."""

from __future__ import annotations

import pytest

from lora.store import CHAT_TEMPLATE_FILE
from tests.builders.chat_templates import SMOLLM2
from tests.builders.https_server import HttpsServer, Status
from tests.builders.operator import Operator
from tests.corpus.imports.conftest import Importing


async def test_a_template_is_imported_with_its_adapter(
    importing: Importing, operator: Operator, models: HttpsServer, files: dict[str, bytes]
) -> None:
    models.publish("bots/one", files | {CHAT_TEMPLATE_FILE: SMOLLM2.encode()})
    job = await importing.run(f"{models.url}/bots/one")
    assert job["state"] == "succeeded", job
    version = await operator.done("GET", "/tenants/acme/adapters/bot/versions/v1")
    assert CHAT_TEMPLATE_FILE in [file["name"] for file in version["files"]]


@pytest.mark.parametrize("status", [404, 403])
async def test_a_source_without_a_template_is_imported_as_before(
    importing: Importing, models: HttpsServer, files: dict[str, bytes], status: int
) -> None:
    models.publish("bots/one", files)
    models.published[f"/bots/one/{CHAT_TEMPLATE_FILE}"] = Status(status)
    assert (await importing.run(f"{models.url}/bots/one"))["state"] == "succeeded"


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (b"{% for %}", "chat_template_invalid"),
        (b" " * 70_000, "file_too_large"),
        (Status(400), "import_source_failed"),
    ],
)
async def test_a_template_that_cannot_be_used_fails_the_import(
    importing: Importing,
    models: HttpsServer,
    files: dict[str, bytes],
    template: bytes | Status,
    code: str,
) -> None:
    models.publish("bots/one", files)
    models.published[f"/bots/one/{CHAT_TEMPLATE_FILE}"] = template
    job = await importing.run(f"{models.url}/bots/one")
    assert (job["state"], job["error"]["code"]) == ("failed", code)
