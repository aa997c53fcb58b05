"""A server that is nothing but an OpenAPI document: it answers each operation with its example.

Knows nothing of Tenfold. Invariants: what no operation of the document takes (a path, a query's
name or value, a body that its schema refuses or that is missing) is noted in `refused`; whatever is
taken is noted in `sent`. A rule that no JSON Schema can say is not known here.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema_rs

JSON = "application/json"
PART_NAME = re.compile(rb'form-data; name="([^"]+)"')


@dataclass
class DocumentedServer:
    """`answers`: by operation, what goes over its example; bytes are sent in its place.

    `sent`: by operation, `METHOD /template`, the names of all that was sent to it: of its query,
    of its headers that the document knows, and of the fields or parts of its body.
    """

    document: Mapping[str, Any]
    answers: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""
    sent: dict[str, set[str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def handle(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, str, bytes]:
        """(status, content type, body) of the answer."""
        parts = urlsplit(target)
        template = self._template(method, parts.path)
        if template is None:
            self.refused.append(f"{method} {parts.path}: no such operation")
            return 404, JSON, b"{}"
        name = f"{method} {template}"
        operation = self.document["paths"][template][method.lower()]
        sent = self.sent.setdefault(name, set())
        sent |= self._read_query(name, operation, parts.query)
        sent |= {header for header in names_in(operation, "header") if header in headers}
        sent |= self._read_body(name, operation, headers.get("content-type", ""), body)
        return self._answer(name, operation)

    def _read_query(self, name: str, operation: Mapping[str, Any], query: str) -> set[str]:
        """A value may be of any type that its text can stand for."""
        values = parse_qs(query, keep_blank_values=True)
        parameters = operation.get("parameters", [])
        schemas = {each["name"]: each["schema"] for each in parameters if each.get("in") == "query"}
        for each, texts in values.items():
            if each not in schemas:
                self.refused.append(f"{name}: no {each} in its query")
                continue
            meanings = (texts[0], _value(texts[0]), texts, [*map(_value, texts)])
            if not any(self._errors(schemas[each], meaning) == [] for meaning in meanings):
                self.refused.append(f"{name}: {each} may not be {texts}")
        return set(values)

    def _errors(self, schema: Mapping[str, Any], value: Any) -> list[str]:
        whole = {**schema, "components": self.document["components"]}
        return [error.message for error in jsonschema_rs.validator_for(whole).iter_errors(value)]

    def _template(self, method: str, path: str) -> str | None:
        for template, operations in self.document["paths"].items():
            pattern = re.sub(r"\\\{[^/]+?\\\}", "[^/]+", re.escape(template))
            if method.lower() in operations and re.fullmatch(pattern, path):
                return str(template)
        return None

    def _read_body(
        self, name: str, operation: Mapping[str, Any], content_type: str, body: bytes
    ) -> set[str]:
        kind = content_type.partition(";")[0]
        contents = operation.get("requestBody", {}).get("content", {})
        if not body:
            if operation.get("requestBody", {}).get("required"):
                self.refused.append(f"{name}: it needs a body")
            return set()
        if kind == "multipart/form-data" and kind in contents:
            return {part.decode() for part in PART_NAME.findall(body)}
        if kind != JSON or kind not in contents:
            if kind not in contents and "application/octet-stream" not in contents:
                self.refused.append(f"{name}: no body of {kind or 'no type'}")
            return set()
        value = json.loads(body)
        self.refused += [
            f"{name}: {error}" for error in self._errors(contents[JSON]["schema"], value)
        ]
        return set(value) if isinstance(value, dict) else set()

    def _answer(self, name: str, operation: Mapping[str, Any]) -> tuple[int, str, bytes]:
        status, response = next(
            (status, response)
            for status, response in operation["responses"].items()
            if status.startswith("2")
        )
        said = self.answers.get(name, {})
        if isinstance(said, bytes):
            return int(status), "application/octet-stream", said
        kind, media = next(iter(response["content"].items()))
        if kind != JSON:
            return int(status), kind, str(media["example"]).encode()
        return int(status), kind, json.dumps({**media["example"], **said}).encode()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def names_in(operation: Mapping[str, Any], place: str) -> set[str]:
    """The names of an operation's parameters in its `query` or `header`."""
    parameters = operation.get("parameters", [])
    return {each["name"] for each in parameters if each.get("in") == place}


@contextmanager
def serving(
    document: Mapping[str, Any], answers: Mapping[str, Any] | None = None
) -> Iterator[DocumentedServer]:
    """The server, on a port of this machine."""
    known = DocumentedServer(document, answers or {})

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, kind, answer = known.handle(self.command, self.path, headers, body)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        known.url = f"http://127.0.0.1:{listening.server_port}"
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            yield known
        finally:
            listening.shutdown()
