"""What only workers need of the registry, and whose it is: the workers' role's alone, or also the
application's.

Migrations give it to both roles, so that a worker of before, or one that has no role of its own,
goes on working. Where workers come in as `tenfold_worker`, `set_job_rights` takes it from
`tenfold_app` (docs/decisions/0024-job-rights.md). Knows nothing of jobs. Invariants: it runs as the
tables' owner; what API processes do, of this version and of those before, is possible either way;
doing it again changes nothing and locks nothing.
"""

from __future__ import annotations

from app.database_url import connect

CONNECT_TIMEOUT_S = 5.0
ANYBODY, WORKERS = "PUBLIC", "tenfold_worker"

# NOTE: `ledger` on requests and request_events stays: with it an API process says of a request that
# it could not begin that it has ended (app/requests/acceptance_repository.py).
_POLICIES = """
SELECT format('ALTER POLICY %I ON public.%I TO %s', policyname, tablename, $1::text)
FROM pg_policies
WHERE schemaname = 'public' AND roles <> ARRAY[lower($1::text)]::name[] AND (
    policyname = 'worker'
    OR (policyname = 'ledger' AND tablename NOT IN ('requests', 'request_events'))
    OR (tablename = 'idempotent_answers' AND policyname IN ('expired_select', 'expired_delete')))
ORDER BY 1
"""
# Each again and again: what is as it is to be stays so, and no table is locked for it. Of requests
# an API process writes that they have ended, and no more; to the ledger it adds, and changes none
# of it.
_TAKE = (
    "REVOKE EXECUTE ON FUNCTION ensure_request_partitions(integer) FROM tenfold_app",
    "REVOKE USAGE ON SEQUENCE spend_version FROM tenfold_app",
    "REVOKE INSERT, UPDATE ON spend FROM tenfold_app",
    "REVOKE INSERT, UPDATE, DELETE ON usage_hours, usage_stale_hours, usage_outbox"
    " FROM tenfold_app",
    "REVOKE UPDATE ON requests, request_events FROM tenfold_app",
    "GRANT UPDATE (state) ON requests TO tenfold_app",
)
_GIVE = (
    "GRANT EXECUTE ON FUNCTION ensure_request_partitions(integer) TO tenfold_app",
    "GRANT USAGE ON SEQUENCE spend_version TO tenfold_app",
    "GRANT INSERT, UPDATE ON spend TO tenfold_app",
    "GRANT INSERT, UPDATE, DELETE ON usage_hours, usage_stale_hours, usage_outbox TO tenfold_app",
    "GRANT UPDATE ON requests, request_events TO tenfold_app",
)


async def set_job_rights(owner_url: str, *, workers_alone: bool) -> None:
    """workers_alone: whether workers come in as `tenfold_worker`, all of them.

    Raises what asyncpg raises: where a table is locked for five seconds, or the role is not its
    owner.
    """
    connection = await connect(owner_url, timeout_s=CONNECT_TIMEOUT_S)
    try:
        # Pods may migrate at once, and two who change a table's privileges at once both fail.
        await connection.execute("SELECT pg_advisory_lock(hashtext('tenfold.job_rights'))")
        await connection.execute("SET lock_timeout = '5s'")
        holders = WORKERS if workers_alone else ANYBODY
        # One transaction each: none waits for a lock while it holds another.
        for row in await connection.fetch(_POLICIES, holders):
            await connection.execute(row[0])
        async with connection.transaction():
            for statement in _TAKE if workers_alone else _GIVE:
                await connection.execute(statement)
    finally:
        await connection.close()
