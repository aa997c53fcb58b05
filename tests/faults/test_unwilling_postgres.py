"""What becomes of new work, running streams and the ledger when Postgres is there, and says no.

Each test is a row of the table in docs/operations.md, and is named there.
"""

from __future__ import annotations

import pytest

from tests.builders.unwilling_postgres import WRITTEN, UnwillingPostgres
from tests.faults.campaign import Recorder
from tests.faults.site import Site, tell
from tests.faults.test_dependencies import own_valkey, redis_link, server, site

__all__ = ["own_valkey", "redis_link", "server", "site"]

STATEMENT_TIMEOUT_S = 0.05


@pytest.fixture
def postgres_says(site: Site) -> UnwillingPostgres:
    return UnwillingPostgres(site.owner)


async def test_postgres_takes_no_more_connections(
    site: Site, postgres_says: UnwillingPostgres, record_property: Recorder
) -> None:
    outage = await site.without_postgres(
        postgres_says.take_no_connections, postgres_says.take_connections
    )
    tell(record_property, outage.summary("Postgres takes no more connections"))
    assert outage.readiness_checks == (200, "snapshot", "ok")


async def test_postgres_is_read_only(
    site: Site, postgres_says: UnwillingPostgres, record_property: Recorder
) -> None:
    """As a primary that was demoted, or that its provider has stopped for a full disk."""
    outage = await site.without_postgres(
        postgres_says.become_read_only, postgres_says.become_writable
    )
    tell(record_property, outage.summary("Postgres is read-only"))
    assert outage.readiness_checks == (200, "ok", "ok")
    assert outage.models is not None and outage.models.status_code == 200


async def test_the_disk_of_postgres_is_full(
    site: Site, postgres_says: UnwillingPostgres, record_property: Recorder
) -> None:
    outage = await site.without_postgres(
        lambda: postgres_says.refuse("53100"), postgres_says.refuse_no_more
    )
    tell(record_property, outage.summary("The disk of Postgres is full"))
    assert outage.readiness_checks == (200, "ok", "ok")


async def test_transactions_of_postgres_fail_to_serialize(
    site: Site, postgres_says: UnwillingPostgres, record_property: Recorder
) -> None:
    """As where an operator has made that the default, or at a deadlock."""
    outage = await site.without_postgres(
        lambda: postgres_says.refuse("40001"), postgres_says.refuse_no_more
    )
    tell(record_property, outage.summary("Transactions fail to serialize"))
    assert outage.readiness_checks == (200, "ok", "ok")


async def test_statements_of_postgres_time_out(
    site: Site, postgres_says: UnwillingPostgres, record_property: Recorder
) -> None:
    """At a lock that nobody gives back, by the time-out that an operator has set there."""

    async def begin() -> None:
        await postgres_says.time_out_after(STATEMENT_TIMEOUT_S)
        await postgres_says.lock(*WRITTEN)

    async def end() -> None:
        await postgres_says.unlock()
        await postgres_says.time_out_never()

    outage = await site.without_postgres(begin, end)
    tell(record_property, outage.summary("Statements time out"))
    assert outage.readiness is not None and outage.readiness.status_code == 200


async def test_the_table_of_requests_is_locked(
    site: Site, postgres_says: UnwillingPostgres, record_property: Recorder
) -> None:
    outage = await site.without_postgres(
        lambda: postgres_says.lock("requests"), postgres_says.unlock
    )
    tell(record_property, outage.summary("The table of requests is locked"))
    assert outage.readiness is not None and outage.readiness.status_code == 200


async def test_the_table_of_tenants_is_locked(
    site: Site, postgres_says: UnwillingPostgres, record_property: Recorder
) -> None:
    """As by a migration that waits for something else: whose keys are known is served."""
    outage = await site.without_postgres(
        lambda: postgres_says.lock("tenants"), postgres_says.unlock, is_refused=False
    )
    tell(record_property, outage.summary("The table of tenants is locked"))
    assert outage.readiness is not None and outage.readiness.status_code == 200
