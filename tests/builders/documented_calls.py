"""Sends what an OpenAPI document says can be sent, and holds answers against what it says of them.

Knows nothing of Tenfold's routes. Invariant: a call that comes back was documented with its status,
and its body fits the schema of that status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import jsonschema_rs

from app.openapi.document import operations_of

JSON = "application/json"


class DocumentedCalls:
    """`names`: what is put into paths, in the place of an example. `sent`: operations by name."""

    def __init__(
        self,
        document: Mapping[str, Any],
        client: httpx.AsyncClient,
        headers: Mapping[str, str],
        names: Mapping[str, str],
    ) -> None:
        self._document = document
        self._client = client
        self._headers = headers
        self.names = dict(names)
        self.sent: set[str] = set()
        self.operations = {
            name: (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            for name in [next(n for n, o in operations_of(dict(document)) if o is operation)]
        }

    async def send(self, name: str, **options: Any) -> httpx.Response:
        """`METHOD /path` with the example of its body, unless `options` has another one."""
        path, method, operation = self.operations[name]
        content = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
        if not options.keys() & {"files", "content", "json"}:
            options["json"] = content.get("example")
        wanted = {
            each["name"]: each["example"]
            for each in operation.get("parameters", [])
            if each.get("in") == "query" and each.get("required")
        }
        answer = await self._client.request(
            method,
            path.format_map(self.names),
            headers=self._headers,
            params={**wanted, **options.pop("params", {})},
            **options,
        )
        assert answer.is_success, (name, answer.text)
        self.check(operation, answer, name)
        self.sent.add(name)
        return answer

    def check(self, operation: Mapping[str, Any], answer: httpx.Response, name: str = "") -> None:
        """Raises AssertionError where `answer` is not what the operation says of it."""
        status = str(answer.status_code)
        assert status in operation["responses"], (name, status)
        content = operation["responses"][status].get("content", {})
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if JSON not in content or kind != JSON:
            return
        self.check_value(content[JSON]["schema"], answer.json(), name)

    def check_value(self, schema: Mapping[str, Any], value: Any, name: str = "") -> None:
        """The same of one value and its schema."""
        whole = {**schema, "components": self._document["components"]}
        try:
            jsonschema_rs.validator_for(whole).validate(value)
        except jsonschema_rs.ValidationError as error:
            raise AssertionError(f"{name}: {error}") from error
