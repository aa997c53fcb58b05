"""Imports from a bucket of a real S3 server: only where an operator allows one, and all of it."""

from __future__ import annotations

import obstore
import pytest

from app.settings import Settings
from lora.store_open import open_objects
from tests.builders.operator import Operator, Tenant
from tests.corpus.imports.conftest import IMPORTS, Importing
from tests.fixtures.object_store import S3Server

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture
def settings(
    settings: Settings, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return settings.model_copy(update={"import_allow": f"{bucket}/models"})


async def test_a_prefix_of_a_bucket_becomes_a_version(
    importing: Importing, s3: S3Server, bucket: str, files: dict[str, bytes]
) -> None:
    objects = open_objects(f"{bucket}/models/one", **s3.options())
    for name, content in files.items():
        obstore.put(objects, name, content)
    job = await importing.run(f"{bucket}/models/one")
    assert job["state"] == "succeeded", job
    assert job["revision"] and job["bytes_done"] == sum(map(len, files.values()))


async def test_a_bucket_that_has_not_all(
    importing: Importing, s3: S3Server, bucket: str, files: dict[str, bytes]
) -> None:
    obstore.put(open_objects(f"{bucket}/models/one", **s3.options()), WEIGHTS, files[WEIGHTS])
    job = await importing.run(f"{bucket}/models/one")
    assert job["error"]["code"] == "import_source_not_found"
    assert CONFIG in job["error"]["message"]


async def test_a_file_over_the_limit(
    importing: Importing, s3: S3Server, bucket: str, files: dict[str, bytes], settings: Settings
) -> None:
    objects = open_objects(f"{bucket}/models/one", **s3.options())
    obstore.put(objects, CONFIG, files[CONFIG])
    obstore.put(objects, WEIGHTS, bytes(settings.max_upload_bytes + 1))
    job = await importing.run(f"{bucket}/models/one")
    assert job["error"]["code"] == "file_too_large"


async def test_another_prefix_and_a_token_are_refused(
    operator: Operator, acme: Tenant, bucket: str
) -> None:
    response = await operator.call("POST", IMPORTS, json={"source": f"{bucket}/private"})
    assert response.json()["error"]["code"] == "import_source_not_allowed"
    body = {"source": f"{bucket}/models/one", "token": "a-token"}
    response = await operator.call("POST", IMPORTS, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (
        422,
        "import_token_unsupported",
    )
