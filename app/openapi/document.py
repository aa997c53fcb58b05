"""Completes what FastAPI knows of an application to a document that one can work from.

Knows nothing of what routes do. Invariants: schemas are those of the models that check requests and
make answers; every operation has an example of what is answered, and of what is sent where a body
is; errors have the one shape that they all have.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import FastAPI

from app.api_version import HEADER, KNOWN, NEWEST
from app.openapi.examples import ANSWERS, BODIES, ERROR, PARAMETERS, REQUESTS, RESPONSES
from app.openapi.samples import FIELDS, sample

Operation = dict[str, Any]

TENANTS_PREFIXES = ("/v1/",)
ADMINS_PREFIXES = ("/admin/v1/", "/internal/", "/metrics")
TENANTS_OWN = ("/keys", "/adapters")
OF_A_TENANT = "/tenants/{tenant}"
ANSWERED = "Answered"
UNUSED = ("HTTPValidationError", "ValidationError")
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string", "description": "Stable; the message may change."},
            },
        }
    },
}
VERSION_HEADER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "The version of the API; without it the one that the key was made with.",
    "schema": {"type": "string", "enum": [*KNOWN.values()]},
    "example": NEWEST,
}
"""Any request may have it, and any answer has it: said once, each operation refers to it."""
VERSION = "ApiVersion"


def tenant_document(app: FastAPI) -> dict[str, Any]:
    """Of the tenants' port. The same is under `/t/{tenant}/v1`."""
    about = "OpenAI's API for your models, and yours to manage them. Send your key as bearer token."
    return _document(app, "Tenfold", about, TENANTS_PREFIXES)


def admin_document(app: FastAPI) -> dict[str, Any]:
    """Of the admin port."""
    about = "Tenants, plans, keys, adapters, usage and the audit log. It is never for the internet."
    return _document(app, "Tenfold admin", about, ADMINS_PREFIXES)


def operation_name(method: str, path: str) -> str:
    """As `app.openapi.examples` names an operation."""
    path = path.removeprefix("/admin/v1").removeprefix("/v1")
    below = path.removeprefix(OF_A_TENANT)
    return f"{method.upper()} {below if below.startswith(TENANTS_OWN) else path}"


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, Operation]]:
    """(name, operation) of all of them."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield operation_name(method, path), operation


def _document(app: FastAPI, title: str, about: str, prefixes: tuple[str, ...]) -> dict[str, Any]:
    document = deepcopy(app.openapi())
    about = f"{about} `API-Version: {NEWEST}` may be sent with any request."
    document["info"] = {"title": title, "version": version("tenfold"), "description": about}
    document["paths"] = {
        path: operations
        for path, operations in document["paths"].items()
        if path.startswith(prefixes)
    }
    components = document.setdefault("components", {})
    components["parameters"] = {VERSION: VERSION_HEADER}
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    schemas = components.setdefault("schemas", {})
    for name in UNUSED:
        schemas.pop(name, None)
    schemas["Error"] = ERROR_SCHEMA
    for name, operation in operations_of(document):
        _complete(name, operation, schemas)
    return document


def _complete(name: str, operation: Operation, schemas: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", []):
        _complete_parameter(parameter, schemas)
    operation.setdefault("parameters", []).append({"$ref": f"#/components/parameters/{VERSION}"})
    if name in BODIES:
        operation["requestBody"] = {"required": True, "content": BODIES[name]}
    for media in operation.get("requestBody", {}).get("content", {}).values():
        if "example" not in media:
            made = sample(media["schema"], schemas, is_request=True)
            media["example"] = REQUESTS.get(name, made)
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own shape, which is never sent
    if name in ANSWERS:
        responses["200"]["content"]["application/json"]["schema"] = _schema_of(
            ANSWERS[name], schemas
        )
    for response in responses.values():
        for media in response.get("content", {}).values():
            made = sample(media.get("schema", {}), schemas, is_request=False)
            media["example"] = RESPONSES.get(name, made)
    responses["default"] = {
        "description": "What went wrong.",
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/Error"},
                "example": ERROR,
            }
        },
    }


def _schema_of(kind: type[msgspec.Struct], schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the schema of a structure; it and what is in it are added to `schemas`.

    Under names of their own: a message of an answer is not one of a request.
    """
    (schema,), made = msgspec.json.schema_components(
        (kind,), ref_template=f"#/components/schemas/{ANSWERED}{{name}}"
    )
    schemas.update({f"{ANSWERED}{name}": each for name, each in made.items()})
    return schema


def _complete_parameter(parameter: dict[str, Any], schemas: dict[str, Any]) -> None:
    name = parameter["name"].lower()
    found = PARAMETERS.get(name, FIELDS.get(name))
    if found is None:
        found = sample(parameter["schema"], schemas, is_request=False, name=name)
    parameter["example"] = found
