"""The pepper of API keys is changed while keys are in use, and none of those is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from app.api import create_app
from app.context import open_context
from app.launcher.postgres import PostgresServer
from app.settings import Settings
from tests.builders.operator import Operator, Tenant

OLD = "pepper-of-the-tests"  # what the fixture's `settings` have
NEW = "pepper-of-next-year"


@asynccontextmanager
async def api_with(peppers: str, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    own = settings.model_copy(update={"key_pepper": SecretStr(peppers)})
    async with open_context(own) as context:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            yield client


async def status(client: httpx.AsyncClient, tenant: Tenant) -> int:
    return (await client.get("/v1/models", headers=tenant.headers)).status_code


async def test_a_pepper_is_changed_in_three_roll_outs_and_no_key_in_use_is_lost(
    operator: Operator, settings: Settings
) -> None:
    used, unused = await operator.new_tenant("used"), await operator.new_tenant("unused")

    async with api_with(f"{OLD}, {NEW}", settings) as first:
        assert await status(first, used) == 200
        async with api_with(f"{NEW},{OLD}", settings) as second:
            for _ in range(2):  # both are in service while pods are replaced
                assert await status(second, used) == 200
                assert await status(first, used) == 200
            assert await status(second, used) == 200

    async with api_with(NEW, settings) as third:
        assert await status(third, used) == 200
        assert await status(third, unused) == 401  # the price of forgetting the old one too soon
    async with api_with(OLD, settings) as none:
        assert await status(none, used) == 401


async def test_a_registry_that_takes_no_changes_still_verifies(
    operator: Operator, settings: Settings, postgres: PostgresServer
) -> None:
    acme = await operator.new_tenant("acme")
    name = settings.database_url.rpartition("/")[2]
    postgres.run_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with api_with(f"{NEW},{OLD}", settings) as client:
        assert await status(client, acme) == 200


def test_a_pepper_that_is_too_short_is_no_pepper(settings: Settings) -> None:
    for peppers in ("short", f"{OLD},short", f"{OLD},"):
        with pytest.raises(ValidationError, match="at least 16"):
            Settings(**settings.model_dump() | {"key_pepper": peppers})
