"""The OpenAPI documents: of each port one, true to its routes, each operation with an example."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import RouteContext, iter_route_contexts
from pydantic import TypeAdapter, ValidationError

from app.middleware import _is_upload
from app.openapi.document import (
    ADMINS_PREFIXES,
    TENANTS_PREFIXES,
    Operation,
    admin_document,
    operations_of,
    tenant_document,
)
from app.openapi.examples import BODIES
from tests.builders.documented_calls import DocumentedCalls
from tests.builders.operator import OPERATOR, Operator, Tenant

SENT_FOR_REAL = [  # in an order in which each can be done; what a name stands for is put in
    "POST /plans",
    "GET /plans/{plan}",
    "PUT /plans/{plan}",
    "POST /prices",
    "GET /prices",
    "POST /tenants",
    "GET /tenants/{tenant}",
    "PATCH /tenants/{tenant}",
    "PUT /tenants/{tenant}/plan",
    "PUT /tenants/{tenant}/limits",
    "GET /tenants/{tenant}/limits",
    "POST /keys",
    "GET /keys",
    "GET /keys/{key}",
    "PUT /keys/{key}/limits",
    "POST /keys/{key}/rotate",
    "POST /keys/{key}/disable",
    "POST /adapters",
    "GET /adapters",
    "GET /adapters/{adapter}",
    "PUT /adapters/{adapter}/limits",
    "GET /audit",
    "GET /audit/{chain}",
    "GET /audit/{chain}/verification",
    "POST /tenants/{tenant}/suspend",
    "POST /tenants/{tenant}/resume",
    "DELETE /adapters/{adapter}",
    "DELETE /keys/{key}",
    "DELETE /tenants/{tenant}",
    "DELETE /plans/{plan}",
]


@pytest.fixture
def documents(tenant_app: FastAPI, admin_app: FastAPI) -> list[tuple[FastAPI, dict[str, Any]]]:
    return [(tenant_app, tenant_document(tenant_app)), (admin_app, admin_document(admin_app))]


def routes(app: FastAPI, document: dict[str, Any]) -> Iterator[tuple[RouteContext, Operation]]:
    """Each route that is in the document, with its operation."""
    for context in iter_route_contexts(app.routes):
        for method in context.methods or ():
            operation = document["paths"].get(context.path_format, {}).get(method.lower())
            if operation is not None:
                yield context, operation


def examples(contents: dict[str, Any]) -> Iterator[Any]:
    for media in contents.get("content", {}).values():
        assert "example" in media, media
        yield media["example"]


def parameters(document: dict[str, Any], operation: Operation) -> Iterator[dict[str, Any]]:
    for each in operation["parameters"]:
        name = each.get("$ref", "").removeprefix("#/components/parameters/")
        yield document["components"]["parameters"][name] if name else each


def test_every_route_is_in_its_document(documents: list[tuple[FastAPI, dict[str, Any]]]) -> None:
    for (app, document), prefixes in zip(
        documents, (TENANTS_PREFIXES, ADMINS_PREFIXES), strict=True
    ):
        paths = {
            context.path_format
            for context in iter_route_contexts(app.routes)
            if str(context.path).startswith(prefixes) and context.include_in_schema
        }
        assert paths == set(document["paths"]) and len(paths) > 15


def test_every_operation_has_an_example_of_what_is_sent_and_answered(
    documents: list[tuple[FastAPI, dict[str, Any]]],
) -> None:
    for app, document in documents:
        for context, operation in routes(app, document):
            assert context.body_field is None or "requestBody" in operation, context.path
        for name, operation in operations_of(document):
            assert name not in BODIES or "requestBody" in operation
            list(examples(operation.get("requestBody", {})))
            for parameter in parameters(document, operation):
                assert "example" in parameter, (name, parameter["name"])
            answered = [
                example
                for status, response in operation["responses"].items()
                if status.startswith("2")
                for example in examples(response)
            ]
            assert answered or "204" in operation["responses"], name
            assert "422" not in operation["responses"] and "default" in operation["responses"]


def test_every_example_is_what_its_route_takes_and_answers(
    documents: list[tuple[FastAPI, dict[str, Any]]],
) -> None:
    wrong, num_answers, num_bodies = [], 0, 0
    for app, document in documents:
        for context, operation in routes(app, document):
            if context.body_field is not None and "requestBody" in operation:
                for example in examples(operation["requestBody"]):
                    _, errors = context.body_field.validate(example, {}, loc=("body",))
                    wrong += [f"{context.path}: {errors}"] if errors else []
                    num_bodies += 1
            if context.response_model is not None:
                (example,) = examples(operation["responses"][str(context.status_code or 200)])
                try:
                    TypeAdapter(context.response_model).validate_python(example)
                except ValidationError as error:
                    wrong.append(f"{context.path}: {error}")
                num_answers += 1
    assert wrong == []
    assert num_answers > 60 and num_bodies > 25


def test_control_an_example_that_no_route_would_take_is_noticed(
    documents: list[tuple[FastAPI, dict[str, Any]]],
) -> None:
    _, document = documents[1]
    operation = document["paths"]["/admin/v1/tenants"]["post"]
    operation["requestBody"]["content"]["application/json"]["example"] = {"slogan": "acme"}
    with pytest.raises(AssertionError, match="slogan"):
        test_every_example_is_what_its_route_takes_and_answers(documents)


async def test_what_the_examples_say_can_be_sent_and_is_answered_as_documented(
    admin: httpx.AsyncClient, admin_app: FastAPI
) -> None:
    names = {"tenant": "acme", "plan": "gold", "adapter": "support-bot", "chain": "acme"}
    calls = DocumentedCalls(admin_document(admin_app), admin, OPERATOR, names)
    for name in SENT_FOR_REAL:
        answer = await calls.send(name)
        if name == "POST /keys":
            calls.names["key"] = answer.json()["id"]
        if name == "POST /tenants":
            assert answer.json()["slug"] == "acme"


async def test_the_documents_are_served_each_on_its_port(
    api: httpx.AsyncClient, admin: httpx.AsyncClient, operator: Operator
) -> None:
    acme: Tenant = await operator.new_tenant("acme")
    mine = (await api.get("/openapi.json")).json()
    assert "/v1/chat/completions" in mine["paths"]
    assert not any(path.startswith("/admin") for path in mine["paths"])
    for headers in ({}, acme.headers):
        assert (await admin.get("/admin/v1/openapi.json", headers=headers)).status_code == 401
    theirs = await operator.done("GET", "/openapi.json")
    assert "/admin/v1/tenants" in theirs["paths"]


def test_whatever_takes_files_has_the_limits_of_files(
    tenant_app: FastAPI, admin_app: FastAPI
) -> None:
    """And not that of JSON bodies, which a dry run had: no adapter of 4 MiB could be tried."""
    takers: set[tuple[str, str]] = set()
    others: set[tuple[str, str]] = set()
    for document in (tenant_document(tenant_app), admin_document(admin_app)):
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                kinds = operation.get("requestBody", {}).get("content", {}).keys()
                is_of_files = kinds & {"multipart/form-data", "application/octet-stream"}
                (takers if is_of_files else others).add((method.upper(), path))
    assert len(takers) >= 4
    assert {each for each in takers if not is_upload(*each)} == set()
    assert {each for each in others if is_upload(*each)} == set(), "the control"


def is_upload(method: str, path: str) -> bool:
    return _is_upload({"method": method, "path": path})
