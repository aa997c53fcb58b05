"""Whatever the admin API can do `tenfold admin` can: held against the OpenAPI document.

Every command is run, with all that it takes, against a server that is this document: what it sends
must be something that the API takes. What no command sends is named here, with the reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
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
from tests.builders.admin_commands import COMMANDS, SUBJECT, Lines, lines_of
from tests.builders.documented_server import DocumentedServer, names_in, serving
from tests.builders.operator import ADMIN_KEY

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
}
ADAPTER = "/admin/v1/tenants/{tenant}/adapters/{adapter}"
ENDED = b'data: {"state": "succeeded", "ended_at": 1767225600}\n\n'
FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"{}"}


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
        f"GET {ADAPTER}/imports/{{import_id}}/events": ENDED,
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
    for each, name in NO_FIELD_OF_ONE:
        method, _, path = each.partition(" ")
        operation = document["paths"]["/admin/v1" + path][method.lower()]
        assert name in fields_of(document, operation), "a reason for what there is not"
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
