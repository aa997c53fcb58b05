"""`tenfold admin` does what an operator does, against the real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli import app
from app.cli.admin import admin
from app.launcher.ports import free_port
from app.settings import Settings
from lora.base_spec import BaseSpec
from tests.builders.adapter_files import adapter_config, adapter_files, write_adapter
from tests.builders.operator import ADMIN_KEY
from tests.builders.stub_engine import StubEngine
from tests.fixtures.processes import ApiProcess

Command = Callable[..., Result]


@pytest.fixture
def run(api_process: ApiProcess) -> Command:
    def run(*arguments: str, key: str = ADMIN_KEY) -> Result:
        environment = {"TENFOLD_ADMIN_URL": api_process.admin_url, "TENFOLD_ADMIN_KEY": key}
        return CliRunner().invoke(admin, arguments, env=environment)

    return run


def test_operator_sets_up_a_tenant_from_the_command_line(
    run: Command, worker_process: Path, tiny_base: BaseSpec, tmp_path: Path, settings: Settings
) -> None:
    def done(*arguments: str) -> dict:
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    tenant = done("tenant", "create", "acme", "--concurrency", "3")
    assert tenant["limits"]["concurrency"] == 3
    scopes = ("--scope", "inference", "--scope", "adapters:write")
    key = done("key", "create", "acme", *scopes, "--expires-in-days", "7")
    assert key["secret"].startswith("tf_") and key["expires_at"] > key["created"]

    folder = write_adapter(tmp_path / "support-bot", adapter_files(tiny_base, seed=1))
    with StubEngine(settings.redis_url):
        first = done("adapter", "push", str(folder), "--tenant", "acme")
        assert (first["version"], first["state"]) == ("v1", "active")
        other = write_adapter(tmp_path / "other", adapter_files(tiny_base, seed=2))
        done("adapter", "push", str(other), "-t", "acme", "--name", "support-bot")
        in_parts = ("--resumable", "--wait", "0", "--no-activate", "--license", "mit")
        (other / "adapter_model.safetensors").write_bytes(
            adapter_files(tiny_base, seed=3)["adapter_model.safetensors"]
        )
        third = done(
            "adapter", "push", str(other), *in_parts, "-t", "acme", "--name", "support-bot"
        )
        assert third["version"] == "v3" and third["provenance"]["via"] == "parts"
    done("adapter", "alias", "support-bot", "prod", "v2", "-t", "acme")
    (upload,) = done("upload", "list", "support-bot", "-t", "acme")
    assert upload["version_id"] == third["id"]

    move_and_retire(done, run)
    validated = done("version", "validate", str(folder), "-t", "acme")
    assert validated["digest"] == first["digest"]
    told_of = [event["type"] for event in done("event", "list")]
    assert told_of[0] == "tenant.created" and "rollout.cancelled" in told_of

    pulled = tmp_path / "pulled"
    told = done("adapter", "pull", "support-bot", "v1", str(pulled), "-t", "acme")
    assert told["digest"] == first["digest"]
    sent = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {path.name: path.read_bytes() for path in pulled.iterdir()} == sent

    assert [row["aliases"] for row in done("adapter", "list", "-t", "acme")] == [{"prod": "v2"}]
    assert [row["version"] for row in done("adapter", "versions", "support-bot", "-t", "acme")] == [
        "v1",
        "v2",
        "v3",
    ]
    table = run("adapter", "list", "-t", "acme")
    assert "support-bot" in table.stdout and "prod=v2" in table.stdout

    done("key", "disable", "acme", key["id"])
    assert done("key", "list", "acme")[0]["disabled_at"] is not None
    assert run("tenant", "delete", "acme").exit_code != 0  # asks, and nobody says yes
    done("tenant", "delete", "acme", "--yes")
    assert done("tenant", "list") == []


def move_and_retire(done: Callable[..., Any], run: Command) -> None:
    """prod means v2 and v1 is active, before and after."""
    prod = ("support-bot", "prod", "-t", "acme")
    etag = done("alias", "show", *prod)["etag"]
    shared = done(
        "alias", "set", *prod, "v1=90", "v2=10", "--sticky-by", "user", "--if-match", etag
    )
    assert [each["weight"] for each in shared["targets"]] == [90, 10]
    assert "v1=90, v2=10" in run("alias", "list", "support-bot", "-t", "acme").stdout
    assert "412 etag_mismatch" in run("alias", "rollback", *prod, "--if-match", etag).stderr
    assert done("alias", "rollback", *prod)["version"] == "v2"
    assert [len(each["targets"]) for each in done("alias", "history", *prod)] == [1, 2, 1, 1]

    step = ("--ladder", "10,100", "--gate", "error_rate:max=0.5,min_samples=20")
    begun = done("rollout", "create", "support-bot", "prod", "v1", *step, "-t", "acme")
    rollout = ("support-bot", begun["id"], "-t", "acme")
    assert done("rollout", "preview", *rollout)["next"] == "wait"
    assert done("rollout", "pause", *rollout)["state"] == "paused"
    assert done("rollout", "cancel", *rollout)["share"] == 0

    first_one = ("support-bot", "v1", "-t", "acme")
    late = ("--date", "2099-01-31")
    assert done("version", "deprecate", *first_one, *late)["shutdown_date"] == "2099-01-31"
    assert done("version", "archive", *first_one)["state"] == "archived"
    assert "409 version_state_conflict" in run("version", "deprecate", *first_one).stderr
    assert done("version", "restore", *first_one)["state"] == "active"
    in_use = run("version", "delete", "support-bot", "v2", "-t", "acme", "--yes")
    assert "409 alias_in_use" in in_use.stderr
    assert done("version", "residency", *first_one)["num_engines"] == 0


def test_operator_changes_a_tenant_rotates_a_key_and_verifies_the_log(run: Command) -> None:
    def done(*arguments: str) -> Any:
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    labels = ("--metadata", "team=support", "--metadata", "tier=1")
    etag = done("tenant", "create", "acme", "--store-prompts-days", "30", *labels)["etag"]
    changed = done("tenant", "set", "acme", "--external-id", "crm-1", "--if-match", etag)
    assert changed["external_id"] == "crm-1" and changed["data_policy"]["retention_days"] == 30
    assert (
        "412 etag_mismatch"
        in run("tenant", "set", "acme", "--all-bases", "--if-match", etag).stderr
    )
    assert changed["metadata"] == {"team": "support", "tier": "1"}
    assert done("tenant", "set", "acme", "--metadata", "tier=2")["metadata"] == {"tier": "2"}
    assert done("tenant", "set", "acme", "--no-metadata")["metadata"] == {}
    bare = done("tenant", "set", "acme", "--no-external-id", "--no-bases")
    assert (bare["external_id"], bare["allowed_bases"]) == (None, [])
    contrary = run("tenant", "set", "acme", "--no-bases", "--all-bases")
    assert contrary.exit_code == 1 and "the contrary" in contrary.stderr
    assert done("tenant", "suspend", "acme")["status"] == "suspended"
    assert done("tenant", "resume", "acme") == done("tenant", "show", "acme")

    old = done("key", "create", "acme", "--model", "support-bot")
    as_made = ("--if-match", old["etag"])
    new = done("key", "rotate", "acme", old["id"], "--overlap-hours", "1", *as_made)
    assert done("key", "show", "acme", old["id"])["replaced_by"] == new["id"] != old["id"]
    assert new["allowed_models"] == ["support-bot"]
    late = run("key", "delete", "acme", old["id"], "--yes", *as_made)
    assert late.exit_code == 1 and "412 etag_mismatch" in late.stderr
    done("key", "delete", "acme", old["id"], "--yes")

    actions = [event["action"] for event in done("audit", "list", "acme")]
    assert actions[0] == "tenant.created" and actions[-1] == "key.deleted"
    assert "key.rotated" in run("audit", "list", "acme").stdout
    heads = {head["tenant_id"]: head for head in done("audit", "heads")}
    assert all(row["is_intact"] for row in done("audit", "verify")) and len(heads) == 2
    head = heads["fleet"]
    assert done("audit", "verify", "fleet", "--kept", f"{head['seq']}:{head['mac']}")
    altered = run("audit", "verify", "fleet", "--kept", f"{head['seq']}:{'0' * 64}")
    assert altered.exit_code == 1 and "1 of 1 chains" in altered.stderr


def test_failures_are_one_message_and_a_status(
    run: Command, tiny_base: BaseSpec, tmp_path: Path
) -> None:
    assert run("tenant", "create", "acme").exit_code == 0

    taken = run("tenant", "create", "acme")
    wrong_key = run("tenant", "list", key="x" * 20)
    empty = write_adapter(tmp_path / "empty", {})
    not_peft = run("adapter", "push", str(empty), "-t", "acme")
    files = adapter_files(tiny_base) | {"adapter_config.json": adapter_config(use_qalora=True)}
    refused = run("adapter", "push", str(write_adapter(tmp_path / "bot", files)), "-t", "acme")

    for result, text in (
        (taken, "409 name_conflict"),
        (wrong_key, "401 invalid_api_key"),
        (not_peft, "adapter_config.json is missing"),
        (refused, "error variant_unsupported"),
    ):
        assert result.exit_code == 1
        assert text in result.stderr and "Traceback" not in result.output


def test_table_that_no_terminal_shows_has_every_id_in_full(run: Command) -> None:
    external_id = "customer-" * 20
    assert run("tenant", "create", "acme", "--external-id", external_id).exit_code == 0
    (tenant,) = json.loads(run("tenant", "list", "--json").stdout)

    header, row = run("tenant", "list").stdout.splitlines()

    assert header.split() == ["id", "slug", "external_id", "limits", "status"]
    assert row.split()[:3] == [tenant["id"], "acme", external_id]


def test_proxy_of_the_environment_stands_before_other_machines_alone(
    monkeypatch: pytest.MonkeyPatch, api_process: ApiProcess
) -> None:
    proxy = f"http://127.0.0.1:{free_port()}"
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    def list_tenants(url: str) -> Result:
        return CliRunner().invoke(admin, ["--url", url, "--key", ADMIN_KEY, "tenant", "list"])

    port = httpx.URL(api_process.admin_url).port
    for host in ("127.0.0.1", "localhost"):
        assert list_tenants(f"http://{host}:{port}").exit_code == 0
    # The control: nobody listens where the proxy should be.
    assert "refused" in list_tenants("http://tenfold.test").stderr


def test_server_that_is_not_there_is_a_message(tmp_path: Path) -> None:
    arguments = ["--url", "http://127.0.0.1:1", "--key", "k" * 20, "tenant", "list"]
    result = CliRunner().invoke(admin, arguments)
    assert result.exit_code == 1 and "does not answer" in result.stderr


def test_key_and_url_are_found_in_the_data_folder(api_process: ApiProcess, tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path), "tenant", "list", "--json"]
    without = CliRunner().invoke(admin, arguments)
    assert without.exit_code == 1 and "no admin key" in without.stderr

    (tmp_path / "demo.json").write_text(json.dumps({"admin_url": api_process.admin_url}))
    (tmp_path / "secrets.json").write_text(json.dumps({"admin_key": ADMIN_KEY}))
    result = CliRunner().invoke(admin, arguments)
    assert json.loads(result.stdout) == []


def test_a_shell_completes_nouns_and_verbs() -> None:
    def complete(words: str) -> list[str]:
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        environment = {"_TENFOLD_COMPLETE": "complete_bash", **asked}
        result = CliRunner().invoke(app, [], env=environment, prog_name="tenfold")
        return result.stdout.split()

    assert complete("tenfold admin roll") == ["rollout"]
    assert complete("tenfold admin rollout pr") == ["preview", "promote"]
    assert complete("tenfold admin alias set --st") == ["--sticky-by"]


def test_help_needs_no_key() -> None:
    for command in ([], ["tenant"], ["adapter", "push"]):
        result = CliRunner().invoke(admin, [*command, "--help"])
        assert result.exit_code == 0 and "Usage" in result.stdout
