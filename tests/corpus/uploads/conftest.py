"""An API in this process whose uploads are cut into small parts, a worker, and two tenants."""

from __future__ import annotations

import httpx
import pytest

from app.context import AppContext
from app.settings import Settings
from app.uploads.jobs import UploadJobs
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.operator import Operator, Tenant
from tests.builders.part_sender import PartSender

PART_BYTES = 1500


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"upload_part_bytes": PART_BYTES, "body_timeout_s": 0.5})


@pytest.fixture
def files(tiny_base: BaseSpec) -> dict[str, bytes]:
    return adapter_files(tiny_base)


@pytest.fixture
async def globex(operator: Operator) -> Tenant:
    tenant = await operator.new_tenant("globex")
    await operator.new_adapter("globex", "bot")
    return tenant


@pytest.fixture
def sender(api: httpx.AsyncClient, acme: Tenant) -> PartSender:
    """acme's developer, on the tenants' port."""
    return PartSender(api, acme.headers, "/v1/adapters/bot/uploads")


@pytest.fixture
def upload_jobs(context: AppContext) -> UploadJobs:
    return UploadJobs(context.database, context.parts, context.now)
