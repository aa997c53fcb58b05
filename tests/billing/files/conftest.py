"""Two tenants, and a worker's work on files, done when a test says so."""

from __future__ import annotations

import pytest

from app.context import AppContext
from app.files.jobs import FileJobs
from app.files.vault import FileVault
from tests.builders.operator import Operator, Tenant


@pytest.fixture
async def acme(operator: Operator) -> Tenant:
    return await operator.new_tenant("acme")


@pytest.fixture
async def globex(operator: Operator) -> Tenant:
    return await operator.new_tenant("globex")


@pytest.fixture
def vault(context: AppContext) -> FileVault:
    assert context.vault is not None
    return context.vault


@pytest.fixture
def file_jobs(context: AppContext, vault: FileVault) -> FileJobs:
    return FileJobs(context.database, vault, context.now)
