"""Whatever the admin API can do `tenfold admin` can: held against the OpenAPI document.

Every command is run, with all that it takes, against a server that is this document: what it sends
must be something that the API takes. What no command sends is named here, with the reason.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from app.cli.admin import admin
from app.cli.admin_keys import SCOPES
from app.openapi.document import admin_document
from lora.digest import FileDigest, adapter_digest, hash_file
from tests.builders.documented_server import DocumentedServer, names_in, serving
from tests.builders.operator import ADMIN_KEY

COMMANDS = """
tenant create acme --external-id crm-1 --concurrency 3 --queue-depth 2 --plan gold --base b
    --store-prompts-days 30 --metadata team=support
tenant list
tenant show acme
tenant set acme --external-id crm-2 --all-bases --store-prompts-days 0 --no-metadata --if-match e
tenant suspend acme --if-match e
tenant resume acme --if-match e
tenant delete acme --yes --erase --if-match e
key create acme --name ci --scope inference --scope usage:read --model bot --expires-in-days 7
    --metadata team=support
key list acme
key show acme key_1
key rotate acme key_1 --overlap-hours 1 --if-match e
key disable acme key_1 --if-match e
key delete acme key_1 --yes --if-match e
adapter create bot -t acme --base-model b --description "Of returns." --metadata team=support
adapter list -t acme
adapter show bot -t acme
adapter versions bot -t acme
adapter alias bot prod v2 -t acme --wait 1 --if-match e
adapter push {folder} -t acme --name bot --wait 1 --no-activate --strict --license mit
adapter push {folder} -t acme --name bot --wait 1 --no-activate --strict --license mit
    --resumable
adapter push {folder} -t acme --name bot --upload upl_1
adapter pull bot v1 {out} -t acme
adapter delete bot -t acme --drain-s 5 --erase --yes --if-match e
version list bot -t acme
version show bot v1 -t acme --wait 1
version report bot v1 -t acme
version activate bot v1 -t acme --if-match e
version deprecate bot v1 -t acme --date 2099-01-31 --if-match e
version archive bot v1 -t acme --if-match e
version restore bot v1 -t acme --if-match e
version delete bot v1 -t acme --aliases v2 --drain-s 5 --erase --yes --if-match e
version validate {folder} -t acme --name bot --strict
version evaluate bot v1 -t acme
version residency bot v1 -t acme
version preload bot v1 -t acme --replicas 2 --wait 1
version pin bot v1 -t acme --hours 2 --replicas 2 --wait 1
version evict bot v1 -t acme --wait 1
version probe bot v1 "Dear customer," -t acme --max-tokens 8
version probe bot v1 "Where is it?" -t acme --chat
version probe bot v1 -t acme --messages {messages}
alias list bot -t acme
alias show bot prod -t acme
alias set bot prod v2 -t acme --wait 1 --if-match e
alias set bot prod v1=95 v2=5 -t acme --sticky-by user --shadow v3=10
alias history bot prod -t acme
alias rollback bot prod -t acme --to alc_1 --if-match e
alias shadow bot prod -t acme
alias delete bot prod -t acme --yes --if-match e
rollout create bot prod v2 -t acme --ladder 5,100 --soak-s 60 --on-fail pause --sticky-by user
    --gate error_rate:max=0.02 --gate ttft_ms:max_regression_pct=20,window_s=60,min_samples=20
    --golden {golden}
rollout list bot -t acme
rollout show bot rol_1 -t acme
rollout preview bot rol_1 -t acme
rollout pause bot rol_1 -t acme --if-match e
rollout resume bot rol_1 -t acme --if-match e
rollout promote bot rol_1 -t acme --if-match e
rollout cancel bot rol_1 -t acme --if-match e
upload list bot -t acme
upload show bot upl_1 -t acme
upload cancel bot upl_1 -t acme --if-match e
import create bot hf://acme/bot -t acme --sha256 {sha256} --credential-ref hub --no-activate
    --strict --license mit
import list bot -t acme
import show bot imp_1 -t acme
import events bot imp_1 -t acme
import cancel bot imp_1 -t acme --if-match e
erasure list -t acme
erasure show x_01kb7c2v3n8q4r5s6t7v8w9x0y -t acme
event list --after 5 --limit 1
audit list acme
audit heads
audit verify
audit verify acme --kept 42:9f3c
usage show --days 2 --until 1767225600 --bucket 1h --by tenant --by key --tenant acme
usage show --csv
usage reconcile --days 2 --until 1767225600 --tenant acme --limit 5
price set eur --input 0.15 --output 0.6 --cached 0.1 --base-model b --tenant acme
    --effective-at 1767225600
price list
price show prc_1
price delete prc_1 --yes --if-match e
plan create gold --limit tokens_per_day=9 --weight 2 --reserved-share 0.1 --priority
plan list
plan show gold
plan set gold --limit concurrency=none --weight 2 --reserved-share 0.1 --no-priority --if-match e
plan delete gold --yes --if-match e
plan assign acme gold --dry-run --if-match e
limits show acme
limits show acme --key key_1
limits show acme --adapter bot
limits set acme --limit concurrency=5 --weight 2 --reserved-share 0.1 --priority --dry-run
    --if-match e
limits set acme --key key_1 {subject} --if-match e
limits set acme --adapter bot {subject} --if-match e
explain req_1
request show req_1
"""
SUBJECT = " ".join(
    f"--limit {kind}=1"
    for kind in (
        "requests_per_minute",
        "tokens_per_minute",
        "tokens_per_day",
        "concurrency",
        "tokens_per_month",
        "soft_tokens_per_month",
        "cost_micros_per_month",
        "soft_cost_micros_per_month",
        "dry_run.tokens_per_day",
    )
)
NO_OPERATION_OF_ADMIN = {
    "GET /internal/drain": "`tenfold drain` does it, before a process is ended",
    "POST /internal/drain": "`tenfold drain` does it, before a process is ended",
    "GET /internal/scaling": "an autoscaler's question",
    "GET /metrics": "Prometheus's question, in its own format",
}
NO_FIELD_OF_ADMIN = {
    "idempotency-key": "a command sends nothing twice",
    "order": "lists are read to their end",
    "after": "lists are read to their end",
    "page": "lists are read to their end",
}
NO_FIELD_OF_ONE = {
    (
        "POST /tenants/{tenant}/adapters/{adapter}/uploads/{upload}/complete",
        "if-match",
    ): "whoever goes on with an upload has the very files that it was begun with",
    ("GET /usage", "limit"): "lists are read to their end",
    ("DELETE /tenants/{tenant}/adapters/{adapter}", "force"): "aliases go with their adapter",
    ("DELETE /tenants/{tenant}/adapters/{adapter}", "aliases"): "aliases go with their adapter",
}
ADAPTER = "/admin/v1/tenants/{tenant}/adapters/{adapter}"
FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"{}"}

Lines = Sequence[Sequence[str]]


def lines_of(text: str, **values: object) -> list[list[str]]:
    """One command a line, but for those that are indented: they go on with the line before."""
    whole = text.replace("\n    ", " ").strip()
    return [shlex.split(line.format_map(values)) for line in whole.split("\n")]


def name_of(operation: str) -> str:
    return operation.replace(" /admin/v1/", " /")


def fields_of(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[str]:
    """All that an operation takes: in its query, in headers, and at the top of its body."""
    yield from names_in(operation, "query") | names_in(operation, "header")
    for media in operation.get("requestBody", {}).get("content", {}).values():
        for schema in media["schema"].get("anyOf", [media["schema"]]):
            name = schema.get("$ref", "").rpartition("/")[2]
            yield from document["components"]["schemas"].get(name, schema).get("properties", ())


def not_sent(document: Mapping[str, Any], sent: Mapping[str, set[str]]) -> list[str]:
    """Operations, and fields of them, that no command sends, and that no reason is given for."""
    missing = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            full = f"{method.upper()} {path}"
            name = name_of(full)
            if name in NO_OPERATION_OF_ADMIN:
                continue
            if full not in sent:
                missing.append(name)
                continue
            missing += [
                f"{name}: {field}"
                for field in fields_of(document, operation)
                if field not in sent[full] | NO_FIELD_OF_ADMIN.keys()
                and (name, field) not in NO_FIELD_OF_ONE
            ]
    return missing


def commands_of(command: Any, named: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of all commands that do something."""
    groups = getattr(command, "commands", None)
    if groups is None:
        yield named
        return
    for name, below in groups.items():
        yield from commands_of(below, (*named, name))


def run(server: DocumentedServer, *arguments: str) -> Result:
    connection = ("--url", server.url, "--key", ADMIN_KEY)
    return CliRunner().invoke(admin, [*connection, *arguments])


@cache
def all_commands() -> Any:
    return typer.main.get_command(admin)


@pytest.fixture(autouse=True)
def made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner makes all commands anew for each that it runs; they are the same."""
    monkeypatch.setattr("typer.testing._get_command", lambda app: all_commands())


def run_all(server: DocumentedServer, lines: Lines) -> None:
    """Every line ends well, and every call that it makes is one that the document knows."""
    for line in lines:
        as_csv = "--csv" in line
        result = run(server, *line, *([] if as_csv else ["--json"]))
        assert result.exit_code == 0, (line, result.output, result.exception)
        assert server.refused == [], line
        if not as_csv:
            json.loads(result.stdout)


@pytest.fixture
def document(request: pytest.FixtureRequest, kept: list[dict[str, Any]]) -> dict[str, Any]:
    if not kept:
        kept.append(admin_document(request.getfixturevalue("admin_app")))
    return deepcopy(kept[0])


@pytest.fixture(scope="module")
def kept() -> list[dict[str, Any]]:
    """The document, once there is one: it takes an API's whole context to make it."""
    return []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bot"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "chat_template.jinja").write_text("x")
    (folder / "eval.jsonl").write_text('{"prompt": "2+2=", "exact": "4"}\n')
    return folder


@pytest.fixture
def lines(folder: Path, tmp_path: Path) -> Lines:
    messages = tmp_path / "messages.json"
    messages.write_text('[{"role": "system", "content": "Be brief."}]')
    return lines_of(
        COMMANDS,
        folder=folder,
        out=tmp_path / "out",
        golden=folder / "eval.jsonl",
        messages=messages,
        sha256="0" * 64,
        subject=SUBJECT,
    )


@pytest.fixture
def answers(folder: Path) -> dict[str, Any]:
    """What commands look into, and what its example says something else of than it can be."""
    rows = [hash_file(path) for path in folder.iterdir()]
    uploads = f"{ADAPTER}/uploads"
    upload = {"state": "uploading", "files": [_file_view(row) for row in rows]}
    version = f"{ADAPTER}/versions/{{version}}"
    downloaded = [FileDigest(name, len(data), _sha256(data)) for name, data in FILES.items()]
    here = "/admin/v1/tenants/acme/adapters/bot/versions/v1/files"
    return {
        f"POST {uploads}": upload,
        f"GET {uploads}/{{upload}}": upload,
        f"GET {version}/download": {
            "digest": adapter_digest(downloaded),
            "files": [
                {"path": row.name, "bytes": row.num_bytes, "sha256": row.sha256}
                | {"url": f"{here}/{row.name}"}
                for row in downloaded
            ],
        },
        f"GET {version}/files/{{path}}": b"{}",
        f"GET {ADAPTER}": {"aliases": {"prod": "v1"}},
        f"GET {ADAPTER}/aliases/{{alias}}/history": {
            "data": [{"id": "alc_1", "targets": [{"version": "v1", "weight": 100}]}]
        },
        f"GET {ADAPTER}/imports/{{import_id}}/events": b'data: {"state": "succeeded"}\n\n',
        "GET /admin/v1/audit/{chain}/verification": {"is_intact": True},
        "GET /admin/v1/reconcile": {"is_balanced": True},
    }


def _file_view(row: FileDigest) -> dict[str, Any]:
    url = f"/admin/v1/tenants/acme/adapters/bot/uploads/upl_1/files/{row.name}/parts/1"
    part = {"n": 1, "url": url, "bytes": row.num_bytes, "required_headers": {}}
    file = {"path": row.name, "bytes": row.num_bytes, "sha256": row.sha256}
    return {**file, "skip_upload": False, "part_size": 1 << 20, "parts": [part], "received": []}


def test_every_operation_of_the_admin_api_and_all_that_it_takes_has_a_command(
    document: dict[str, Any],
    lines: Lines,
    answers: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TENFOLD_IMPORT_TOKEN", raising=False)
    with serving(document, answers) as server:
        run_all(server, lines)
        monkeypatch.setenv("TENFOLD_IMPORT_TOKEN", "hf_secret")
        run_all(server, [["import", "create", "bot", "hf://acme/bot", "-t", "acme"]])
        assert not_sent(document, server.sent) == []
    for each in NO_OPERATION_OF_ADMIN:
        method, _, path = each.partition(" ")
        assert method.lower() in document["paths"][path]
    assert set(SCOPES) == {
        *document["components"]["schemas"]["KeyCreate"]["properties"]["scopes"]["items"]["enum"]
    }


def test_every_command_is_among_those_that_are_tried(lines: Lines) -> None:
    tried = {tuple(line[: 1 if line[0] == "explain" else 2]) for line in lines}
    assert set(commands_of(all_commands())) == tried


def test_every_command_has_a_table_too(
    document: dict[str, Any], lines: Lines, answers: dict[str, Any]
) -> None:
    with serving(document, answers) as server:
        for line in {tuple(line[:2]): line for line in reversed(lines)}.values():
            result = run(server, *line)
            assert result.exit_code == 0 and result.stdout, (line, result.output)
            assert not result.stdout.startswith(("{", "["))


def test_what_destroys_asks_first(
    document: dict[str, Any], lines: Lines, answers: dict[str, Any]
) -> None:
    with serving(document, answers) as server:
        for line in lines:
            assert ("--yes" in line) == (line[1] == "delete"), line
            if "--yes" in line:
                assert run(server, *(word for word in line if word != "--yes")).exit_code == 1
        assert server.sent == {}


def test_parts_that_have_arrived_are_not_sent_again_and_other_files_not_at_all(
    document: dict[str, Any], answers: dict[str, Any], folder: Path
) -> None:
    again = ("adapter", "push", str(folder), "-t", "acme", "--upload", "upl_1", "--json")
    uploads = f"{ADAPTER}/uploads/{{upload}}"
    part = f"PUT {uploads}/files/{{path}}/parts/{{number}}"
    begun = answers[f"GET {uploads}"]
    with serving(document, answers) as server:
        assert run(server, *again).exit_code == 0 and part in server.sent
    for file in begun["files"]:
        file["received"] = [1]
    with serving(document, answers) as server:
        assert run(server, *again).exit_code == 0
        assert part not in server.sent and f"POST {uploads}/complete" in server.sent
    (folder / "chat_template.jinja").write_text("changed meanwhile")
    with serving(document, answers) as server:
        assert "begun with other files" in run(server, *again).stderr
        assert f"POST {uploads}/complete" not in server.sent
    begun["files"] = answers[f"POST {ADAPTER}/uploads"]["files"]
    elsewhere = {**begun["files"][0]["parts"][0], "url": "https://evil.test/part"}
    answers[f"POST {ADAPTER}/uploads"]["files"][0]["parts"] = [elsewhere]
    answers[f"POST {ADAPTER}/uploads"]["files"][0]["received"] = []
    with serving(document, answers) as server:
        new = ("adapter", "push", str(folder), "-t", "acme", "--resumable", "--json")
        assert "is no path of the API" in run(server, *new).stderr


def test_control_what_no_command_sends_is_noticed(
    document: dict[str, Any], lines: Lines, answers: dict[str, Any]
) -> None:
    with serving(document, answers) as server:
        run_all(server, [line for line in lines if line[0] == "plan"])
    missing = not_sent(document, server.sent)
    assert "DELETE /prices/{price}" in missing
    assert not any(each.endswith(" /plans/{plan}") for each in missing)

    newer = deepcopy(document)
    newer["components"]["schemas"]["PlanPut"]["properties"]["colour"] = {"type": "string"}
    newer["paths"]["/admin/v1/plans/{plan}"]["patch"] = {}
    found = {*not_sent(newer, server.sent)} - {*missing}
    assert found == {"PUT /plans/{plan}: colour", "PATCH /plans/{plan}"}


def test_control_what_the_api_does_not_take_is_noticed(document: dict[str, Any]) -> None:
    older = deepcopy(document)
    del older["paths"]["/admin/v1/plans/{plan}"]["get"]
    del older["components"]["schemas"]["PlanPut"]["properties"]["weight"]
    with serving(older) as server:
        run(server, "plan", "show", "gold")
        run(server, "plan", "set", "gold", "--weight", "2")
    no_operation, no_field = server.refused
    assert no_operation == "GET /admin/v1/plans/gold: no such operation"
    assert no_field.startswith("PUT /admin/v1/plans/{plan}: ") and "weight" in no_field


def test_a_name_that_would_lead_to_another_object_is_refused(document: dict[str, Any]) -> None:
    with serving(document) as server:
        for tenant in ("acme/keys/key_1", "..", "", "acme?erase=true", "a%2Fb", "acme\n"):
            result = run(server, "tenant", "delete", tenant, "--yes")
            assert result.exit_code == 1 and "is no name or id" in result.stderr
        assert server.sent == {} and server.refused == []


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
