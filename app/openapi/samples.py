"""A plausible value for a JSON schema, the same every time.

Knows nothing of routes. Invariant: what a schema requires is there; of what it allows to be left
out, a request has nothing and an answer everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.api_version import NEWEST

Schema = Mapping[str, Any]

AT = 1_767_225_600  # 2026-01-01T00:00:00Z
DATE = "2026-06-30"
NUMBER = "01kb7c2v3n8q4r5s6t7v8w9x0y"  # of an id
HEX = "4f1d7c9a0b3e5826d1f4a7c3e9b06582" * 2
SECRET = "tf_EXAMPLEonlyNotAKeyEXAMPLEonlyNotAKeyEXAMPLEonly0000"
REQUEST_ID = f"req_{NUMBER}"

ID_OF_OBJECT = {
    "tenant": "ten",
    "api_key": "key",
    "adapter": "adp",
    "adapter.version": "ver",
    "plan": "pln",
    "price": "prc",
    "audit_event": "aud",
    "batch": "bat",
    "file": "fil",
    "adapter.upload": "upl",
    "adapter.import": "imp",
    "rollout": "rol",
}
FIELDS: dict[str, Any] = {
    "tenant_id": f"ten_{NUMBER}",
    "key_id": f"key_{NUMBER}",
    "adapter_id": f"adp_{NUMBER}",
    "version_id": f"ver_{NUMBER}",
    "plan_id": f"pln_{NUMBER}",
    "input_file_id": f"fil_{NUMBER}",
    "output_file_id": f"fil_{NUMBER}",
    "error_file_id": f"fil_{NUMBER}",
    "created_by": "operator",
    "actor": "operator",
    "request_id": REQUEST_ID,
    "first_id": f"ten_{NUMBER}",
    "last_id": f"ten_{NUMBER}",
    "after": f"ten_{NUMBER}",
    "tenant": "acme",
    "slug": "acme",
    "external_id": "crm-4711",
    "name": "support-bot",
    "adapter": "support-bot",
    "model": "support-bot",
    "alias": "prod",
    "version": "v1",
    "plan": "gold",
    "key": f"key_{NUMBER}",
    "price": f"prc_{NUMBER}",
    "base": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "base_model": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "base_model_id": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "owned_by": "acme",
    "chain": "acme",
    "digest": f"sha256:{HEX}",
    "sha256": HEX,
    "mac": HEX,
    "seal": HEX,
    "etag": HEX[:32],
    "secret": SECRET,
    "last4": "0000",
    "api_version": NEWEST,
    "scopes": ["inference"],
    "allowed_models": ["support-bot"],
    "metadata": {"team": "support"},
    "data_policy": {"store_prompts": False, "retention_days": None},
    "limits": {"tokens_per_minute": 100_000},
    "action": "tenant.created",
    "target": f"ten_{NUMBER}",
    "kind": "tokens_per_minute",
    "currency": "eur",
    "input": "0.15",
    "cached": "0.075",
    "output": "0.60",
    "cost": "1.234567",
    "status": "active",
    "state": "active",
    "source": "plan:gold",
    "filename": "requests.jsonl",
    "purpose": "batch",
    "findings": [],
    "message": "The adapter fits the base.",
}


def sample(
    schema: Schema, schemas: Mapping[str, Schema], *, is_request: bool, name: str = ""
) -> Any:
    """A value that `schema` allows. `schemas`: the document's components; `name`: of the field."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    for key in ("example", "const", "default"):
        if key in schema and (schema[key] is not None or is_request):
            return schema[key]
    if schema.get("examples"):
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            choices = [each for each in schema[key] if each.get("type") != "null"]
            return sample(choices[0], schemas, is_request=is_request, name=name)
    return _of_type(schema, schemas, is_request, name)


def _of_type(schema: Schema, schemas: Mapping[str, Schema], is_request: bool, name: str) -> Any:
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return _of_object(schema, schemas, is_request, name)
    if kind == "array":
        if name in FIELDS and isinstance(FIELDS[name], list):
            return FIELDS[name]
        if is_request and not schema.get("minItems"):
            return []
        return [sample(schema.get("items", {}), schemas, is_request=is_request, name=name)]
    if kind == "null":
        return None
    if kind == "boolean":
        return False
    if kind in ("integer", "number"):
        return _of_number(schema, name)
    if kind == "string":
        return _of_string(schema, name)
    return FIELDS.get(name, {})


def _of_object(schema: Schema, schemas: Mapping[str, Schema], is_request: bool, name: str) -> Any:
    found = FIELDS.get(name)
    if isinstance(found, dict):
        return found
    properties: Mapping[str, Schema] = schema.get("properties", {})
    wanted = schema.get("required", []) if is_request else list(properties)
    value = {
        each: sample(properties[each], schemas, is_request=is_request, name=each)
        for each in wanted
        if each in properties
    }
    kind = properties.get("object", {}).get("const")
    if kind in ID_OF_OBJECT and "id" in value:
        value["id"] = f"{ID_OF_OBJECT[kind]}_{NUMBER}"
    return value


def _of_number(schema: Schema, name: str) -> Any:
    if name in ("created", "recorded_at") or name.endswith(("_at", "_time")):
        return AT
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    return max(int(least), 1) if schema.get("maximum", 2) >= 1 else least


def _of_string(schema: Schema, name: str) -> str:
    if schema.get("format") == "date":
        return DATE
    if schema.get("format") == "date-time":
        return "2026-01-01T00:00:00Z"
    found = FIELDS.get(name, "")
    if isinstance(found, str) and found:
        return found
    return f"x_{NUMBER}" if name == "id" or name.endswith("_id") else name or "text"
