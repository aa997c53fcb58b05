"""An upgrade: a schema that is too old keeps pods out and says so; old code runs on a newer one."""

from __future__ import annotations

import asyncio
import re
import secrets
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path

import httpx
import pytest
from alembic import command
from alembic.script import ScriptDirectory

from app.api import create_app
from app.context import open_context
from app.launcher.ports import LOOPBACK, free_port
from app.launcher.postgres import PostgresServer
from app.launcher.valkey import ValkeyServer
from app.migrate import alembic_config, migrate
from app.schema_repository import needed_revision
from app.settings import Settings
from app.smoke.check import SmokeError
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import wait_until
from tests.chart.rendering import CHECKOUT
from tests.chart.site import Site, is_ready, site
from tests.fixtures.processes import running
from tests.fixtures.servers import TestDatabase

READINESS = "/readyz?engines=optional"
BEFORE = "0005"  # the last revision that was changed by hand after others had it
FIRST_SINCE = "migrations/versions/0006_lifecycle.py"
NUM_AT_ONCE = 8
MAX_TOKENS = 12
NOWHERE = "postgresql+asyncpg://nobody@nowhere/none"


def one_before() -> str:
    """The last revision but one: their numbers have gaps."""
    head = ScriptDirectory.from_config(alembic_config(NOWHERE)).get_revision("head")
    assert head is not None and head.revision == needed_revision()
    assert isinstance(head.down_revision, str)
    return head.down_revision


@pytest.fixture
def outdated(empty_database: TestDatabase, settings: Settings) -> Settings:
    """Of a registry whose last migration has not been made."""
    migrate(empty_database.owner_url, one_before())
    return settings.model_copy(update={"database_url": empty_database.app_url})


@pytest.mark.parametrize("database_is", ["behind", "empty", "unreadable"])
async def test_api_is_not_ready_on_an_older_schema_and_says_why(
    database_is: str, empty_database: TestDatabase, settings: Settings, postgres: PostgresServer
) -> None:
    name = empty_database.owner_url.rpartition("/")[2]
    if database_is != "empty":
        await asyncio.to_thread(migrate, empty_database.owner_url, one_before())
    if database_is == "unreadable":  # as code left it that did not know of this check
        postgres.run_sql("REVOKE SELECT ON alembic_version FROM PUBLIC", name)
    own = settings.model_copy(update={"database_url": empty_database.app_url})
    async with open_context(own) as context:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            before = await client.get(READINESS)
            alive = await client.get("/livez")
            await asyncio.to_thread(migrate, empty_database.owner_url)
            after = await client.get(READINESS)
            postgres.run_sql("UPDATE alembic_version SET version_num = '9999'", name)
            newer = await client.get(READINESS)

    assert (before.status_code, before.json()["checks"]["registry"]) == (503, "outdated")
    found = one_before() if database_is == "behind" else "none"
    assert f"at revision {found}" in before.json()["reason"]
    assert needed_revision() in before.json()["reason"]
    assert alive.status_code == 200
    assert (after.status_code, newer.status_code) == (200, 200), after.text


def test_worker_waits_for_a_schema_that_it_can_work_on(
    outdated: Settings, empty_database: TestDatabase, tmp_path: Path
) -> None:
    port, log = free_port(), tmp_path / "worker.log"
    url = f"http://{LOOPBACK}:{port}"
    with running("app.worker", outdated, log, {"TENFOLD_HEALTH_PORT": str(port)}):
        wait_until(lambda: "registry_outdated" in log.read_text(), timeout_s=60)
        before = httpx.get(f"{url}/readyz")
        assert "worker_listening" not in log.read_text()
        migrate(empty_database.owner_url)
        wait_until(lambda: "worker_listening" in log.read_text(), timeout_s=20)
        assert is_ready(url)
    assert (before.status_code, before.json()["checks"]) == (503, {"registry": "outdated"})
    assert "tenfold migrate" in before.json()["reason"]


# What takes something away from a process of before; a constraint that is made anew may only widen.
CONTRACTION = re.compile(
    r"DROP (TABLE|COLUMN|SCHEMA|FUNCTION|POLICY)|RENAME|ALTER COLUMN \S+ (TYPE|SET NOT NULL)"
    r"|REVOKE [^;]* FROM tenfold_app|ADD COLUMN [^;]* NOT NULL",
    re.IGNORECASE,
)


def contractions(sql: str) -> list[str]:
    statements = (" ".join(each.split()) for each in sql.split(";"))
    return [each[:200] for each in statements if CONTRACTION.search(each) and not _is_added(each)]


def _is_added(statement: str) -> bool:
    """A column with a default is one that old code need not know."""
    is_column = re.search(r"ADD COLUMN", statement, re.IGNORECASE)
    return bool(is_column and re.search(r"DEFAULT", statement, re.IGNORECASE))


def test_migrations_only_add() -> None:
    config = alembic_config(NOWHERE)
    config.output_buffer = StringIO()
    command.upgrade(config, f"{BEFORE}:head", sql=True)
    assert contractions(config.output_buffer.getvalue()) == []


def test_control_what_takes_away_is_noticed() -> None:
    for sql in (
        "ALTER TABLE tenants DROP COLUMN slug",
        "ALTER TABLE tenants RENAME slug TO name",
        "ALTER TABLE tenants ALTER COLUMN slug TYPE varchar(9)",
        "ALTER TABLE tenants ADD COLUMN region text NOT NULL",
        "DROP TABLE tenants",
    ):
        assert contractions(sql) == [sql]
    for sql in ("ALTER TABLE x ADD COLUMN y text DEFAULT '' NOT NULL", "CREATE TABLE x (y text)"):
        assert contractions(sql) == []


@pytest.fixture(scope="module")
def code_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of the code that knew no migration after `BEFORE`."""
    git = ["git", "-C", str(CHECKOUT)]
    added = subprocess.run(
        [*git, "log", "--diff-filter=A", "--format=%H", "-1", "--", FIRST_SINCE],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    archive = subprocess.run(
        [*git, "archive", f"{added}~1", "--", "app", "engine", "lora", "migrations", "tests"],
        capture_output=True,
        check=False,
    )
    if not added or archive.returncode != 0:
        pytest.skip("this checkout has no history")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@contextmanager
def both_versions(
    settings: Settings, code_before: Path, folder: Path
) -> Iterator[tuple[Site, Site]]:
    """Code of before and of now on one registry, each with a queue of its own."""
    # Neither worker sees the other's API process, and would take it for dead.
    patient = {"TENFOLD_API_LOST_AFTER_S": "3600"}
    of_before = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(code_before)}
    valkey = ValkeyServer(folder / "valkey", password=secrets.token_hex(8), durable=False)
    with valkey:
        theirs = settings.model_copy(update={"redis_url": valkey.url})
        with (
            site(theirs, folder / "before", patient | of_before) as before,
            site(settings, folder / "now", patient) as now,
        ):
            yield before, now


def test_two_versions_of_the_code_run_on_one_database(
    settings: Settings, code_before: Path, tmp_path: Path
) -> None:
    """Each does all that it can, and a key that one made opens the other."""
    with both_versions(settings, code_before, tmp_path) as sites, ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(Site.smoke, sites))) == 2
        before, now = sites
        assert "0006" not in {each.name[:4] for each in (code_before / "migrations").rglob("*.py")}
        for maker, other in ((before, now), (now, before)):
            slug = f"of-{'before' if maker is before else 'now'}"
            headers = maker.new_key(slug)
            for each in (maker, other):
                models = httpx.get(f"{each.url}/v1/models", headers=headers, timeout=30)
                assert models.status_code == 200, models.text
        list(pool.map(Site.smoke, sites))


def test_control_old_code_fails_on_a_schema_that_lost_something(
    settings: Settings,
    code_before: Path,
    database: TestDatabase,
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    name = database.owner_url.rpartition("/")[2]
    with both_versions(settings, code_before, tmp_path) as (before, _):
        postgres.run_sql("ALTER TABLE api_keys RENAME COLUMN last4 TO last_four", name)
        with pytest.raises(SmokeError, match="key"):
            before.smoke()


@pytest.mark.parametrize("older", ["engine", "api"])
def test_two_versions_of_the_code_talk_over_one_queue(
    older: str, settings: Settings, code_before: Path, tmp_path: Path
) -> None:
    """An engine of before serves API processes of now, and the other way round: whole answers,
    clients that leave, and a ledger that adds up."""
    of_before = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(code_before)}
    of_now = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(CHECKOUT)}
    of_site, of_engine = (of_now, of_before) if older == "engine" else (of_before, of_now)
    with (
        site(settings, tmp_path / "site", of_site, of_engine=of_engine) as running,
        ThreadPoolExecutor(NUM_AT_ONCE) as pool,
    ):
        headers = running.new_key()
        answers = list(pool.map(lambda _: ask(running, headers), range(3 * NUM_AT_ONCE)))
        leave_early(running, headers)
        answers.append(ask(running, headers))
        assert {answer.status_code for answer in answers} == {200}, answers[-1].text
        counts = {answer.json()["usage"]["completion_tokens"] for answer in answers}
        ledger = running.reconciled()["totals"]["ledger"]
    assert counts == {MAX_TOKENS}
    assert ledger["output_tokens"] >= len(answers) * MAX_TOKENS


def ask(running: Site, headers: Mapping[str, str]) -> httpx.Response:
    body = {"model": MODEL_ID, "prompt": "abcdefgh", "max_tokens": MAX_TOKENS}
    return httpx.post(f"{running.url}/v1/completions", json=body, headers=headers, timeout=60)


def leave_early(running: Site, headers: Mapping[str, str]) -> None:
    """At the first token of many."""
    body = {"model": MODEL_ID, "prompt": "abcdefgh", "max_tokens": 200, "stream": True}
    url = f"{running.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as response:
        assert response.status_code == 200
        next(response.iter_bytes())
