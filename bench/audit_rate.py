"""How many events of an audit log are verified a second, on a private Postgres.

    python -m bench.audit_rate --events 100000

Prints JSON: the rate by the wall, and by the CPU time of the verifying process alone, which is what
it would be with a Postgres of another machine. Predicted from the cost of a lone MAC, which no
verification can do without. Invariant: the chain is whole, and every event of it was followed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.audit.chain import START, Link, audit_keys, head_seal, link_mac
from app.audit.service import verify_chain
from app.audit.tables import AuditEvent, AuditHead
from app.db import Database, tenant_scope
from app.launcher.postgres import PostgresServer
from app.migrate import migrate

TENANT = "ten_" + "0" * 26
KEYS = audit_keys("pepper-of-the-bench")
BEGAN_AT = datetime(2027, 1, 1, tzinfo=UTC)
ROUNDS = 5


def chain_of(length: int) -> list[Link]:
    """Events as a new key leaves them."""
    links: list[Link] = []
    mac = START
    for seq in range(1, length + 1):
        at = BEGAN_AT + timedelta(microseconds=seq)
        fields = ("operator", f"req_{seq}", "key.created", f"key_{seq}", None, '{"name":"key"}')
        link = Link(TENANT, seq, f"aud_{seq}", at, *fields, "")
        mac = link_mac(KEYS[0], mac, link)
        links.append(link._replace(mac=mac))
    return links


async def write(session: AsyncSession, links: list[Link]) -> None:
    await tenant_scope(session, TENANT)
    await session.execute(insert(AuditEvent), [link._asdict() for link in links])
    end = links[-1]
    seal = head_seal(KEYS[0], TENANT, end.seq, end.mac)
    head = {"tenant_id": TENANT, "seq": end.seq, "mac": end.mac, "seal": seal}
    await session.execute(insert(AuditHead), [head])
    await session.commit()


def lone_mac_s(links: list[Link]) -> float:
    began_at = time.process_time()
    for link in links:
        link_mac(KEYS[0], START, link)
    return (time.process_time() - began_at) / len(links)


async def measure(url: str, length: int) -> dict[str, object]:
    links = chain_of(length)
    owner = Database(url, pool_size=1)
    walls, cpus = [], []
    async with owner.session() as session:
        await write(session, links)
        for _ in range(ROUNDS):
            wall_at, cpu_at = time.perf_counter(), time.process_time()
            verifier = await verify_chain(session, KEYS, TENANT)
            walls.append(time.perf_counter() - wall_at)
            cpus.append(time.process_time() - cpu_at)
            assert verifier.findings == [] and verifier.num_events == length
    await owner.close()
    return {
        "events": length,
        "predicted_at_most_per_s": round(1 / lone_mac_s(links)),
        "verified_per_s": [round(length / seconds) for seconds in walls],
        "verified_per_cpu_s": [round(length / seconds) for seconds in cpus],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=100_000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer(Path(folder) / "postgres", durable=False) as server,
    ):
        migrate(server.admin_url)
        result = asyncio.run(measure(server.admin_url, options.events))
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
