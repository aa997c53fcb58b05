"""The restore drill: what was backed up works on servers that never saw it, and is what it was."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from app.cli.admin import admin
from app.launcher.postgres import PostgresServer
from app.launcher.valkey import ValkeyServer
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_files
from tests.builders.envelope_keys import ENVELOPE_KEYS
from tests.builders.operator import ADMIN_KEY
from tests.builders.running_engine import RunningEngine
from tests.builders.waiting import wait_until
from tests.chart.scripts import script
from tests.chart.site import Site, site
from tests.faults.real_base import write_real_base
from tests.fixtures.servers import TestDatabase

BODY = {"model": "bot", "prompt": "abcdefgh", "max_tokens": 12, "temperature": 0}
CONTENT = b'{"messages": [{"role": "user", "content": "hello"}]}\n'


@dataclass(frozen=True, slots=True)
class Original:
    """What a back-up was made of, and what was true of it."""

    backup: Path
    settings: Settings
    headers: Mapping[str, str]
    answer: str
    file: str
    """The id of a tenant's file, whose content is `CONTENT`."""
    heads: dict[str, str]
    """Of the audit log, kept elsewhere: SEQ:MAC by chain."""
    ledger: dict[str, int]
    """What was accounted for."""


def command(running: Site, *arguments: str) -> tuple[int, str]:
    """`tenfold admin ...` against a site."""
    variables = {"TENFOLD_ADMIN_URL": running.admin_url, "TENFOLD_ADMIN_KEY": ADMIN_KEY}
    done = CliRunner().invoke(admin, arguments, env=variables)
    return done.exit_code, done.output


def with_files(store: Path) -> dict[str, str]:
    """What the chart tells processes: files lie in a folder of the adapters' store."""
    return {"TENFOLD_FILE_STORE": str(store / ".files"), "TENFOLD_ENVELOPE_KEYS": ENVELOPE_KEYS}


def ask(running: Site, headers: Mapping[str, str]) -> httpx.Response:
    return httpx.post(f"{running.url}/v1/completions", json=BODY, headers=headers, timeout=60)


def push_file(running: Site, headers: Mapping[str, str]) -> str:
    made = httpx.post(
        f"{running.url}/v1/files",
        data={"purpose": "user_data"},
        files={"file": ("lines.jsonl", CONTENT)},
        headers=headers,
        timeout=60,
    )
    return str(made.raise_for_status().json()["id"])


def content_of(running: Site, headers: Mapping[str, str], file: str) -> httpx.Response:
    return httpx.get(f"{running.url}/v1/files/{file}/content", headers=headers, timeout=60)


def push_adapter(running: Site, base: BaseSpec) -> None:
    adapters = "/tenants/acme/adapters"
    files = {name: (name, data) for name, data in adapter_files(base, seed=1).items()}
    with running.admin() as client:

        def state() -> str:
            return str(client.get(f"{adapters}/bot/versions/v1").raise_for_status().json()["state"])

        client.post(adapters, json={"name": "bot"}).raise_for_status()
        client.post(f"{adapters}/bot/versions", files=files).raise_for_status()
        wait_until(lambda: state() == "active", timeout_s=60)
        body = {"version": "v1"}
        client.put(f"{adapters}/bot/aliases/prod", json=body).raise_for_status()


@pytest.fixture
def original(
    settings: Settings, database: TestDatabase, postgres: PostgresServer, tmp_path: Path
) -> Iterator[Original]:
    """Backed up while it was in use, and gone."""
    folder = tmp_path / "original"
    model = write_real_base(folder / "base")
    store = folder / "store"
    own = settings.model_copy(update={"model": model, "adapter_store": str(store)})
    with (
        RunningEngine(folder, own.redis_url, model=model),
        site(
            own, folder / "site", with_files(store), step_ms=None, worker_url=database.worker_url
        ) as running,
    ):
        headers = running.new_key()
        push_adapter(running, BaseSpec.from_folder(model))
        file = push_file(running, headers)
        answer = ask(running, headers)
        assert answer.status_code == 200, answer.text
        ledger = running.reconciled()["totals"]["ledger"]
        with running.admin() as client:
            chains = client.get("/audit").raise_for_status().json()["data"]
        backed_up = script(
            "back-up.sh",
            tmp_path / "backup",
            postgres,
            database.owner_url,
            store,
            store / ".files",
        )
        assert backed_up.returncode == 0, backed_up.stderr
    heads = {each["tenant_id"]: f"{each['seq']}:{each['mac']}" for each in chains}
    text = answer.json()["choices"][0]["text"]
    yield Original(tmp_path / "backup", own, headers, text, file, heads, ledger)


def test_a_backup_is_whole_on_servers_that_never_saw_it(original: Original, tmp_path: Path) -> None:
    folder = tmp_path / "restored"
    folder.mkdir()
    store = folder / "store"
    valkey = ValkeyServer(folder / "valkey", password=secrets.token_hex(8), durable=False)
    with PostgresServer(folder / "postgres", durable=False) as server, valkey:
        restored = script(
            "restore.sh", original.backup, server, server.admin_url, store, store / ".files"
        )
        assert restored.returncode == 0, restored.stderr
        own = original.settings.model_copy(
            update={
                "database_url": server.app_url(),
                "redis_url": valkey.url,
                "adapter_store": str(store),
                "data_dir": folder / "data",
            }
        )
        with (
            RunningEngine(folder, own.redis_url, model=own.model),
            site(
                own,
                folder / "site",
                with_files(store),
                step_ms=None,
                worker_url=server.worker_url(),
            ) as running,
        ):
            assert running.reconciled()["totals"]["ledger"] == original.ledger
            assert command(running, "usage", "reconcile")[0] == 0
            store.rename(folder / "away")  # a registry without its store is half a back-up
            store.mkdir()
            missing = ask(running, original.headers)
            assert (missing.status_code, missing.json()["error"]["code"]) == (
                503,
                "adapter_missing",
            )
            store.rmdir()
            (folder / "away").rename(store)

            answer = ask(running, original.headers)
            assert answer.json()["choices"][0]["text"] == original.answer
            assert content_of(running, original.headers, original.file).content == CONTENT
            assert command(running, "audit", "verify")[0] == 0
            for chain, kept in original.heads.items():
                code, output = command(running, "audit", "verify", chain, "--kept", kept)
                assert code == 0, output

            server.run_sql(
                "ALTER TABLE audit_events DISABLE TRIGGER append_only;"
                " DELETE FROM audit_events WHERE tenant_id <> 'fleet' AND seq = 2",
                "tenfold",
            )
            assert command(running, "audit", "verify")[0] == 1
