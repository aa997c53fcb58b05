"""The admin API from the command line: one HTTP client, one way to fail, two ways to show.

Knows nothing of single commands. Invariant: it speaks REST and nothing else, so that whatever the
command line can do an operator's own program can do as well.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console
from rich.table import Table

DEFAULT_URL = "http://127.0.0.1:8001"
TIMEOUT_S = 30.0
PAGE_SIZE = 100
UNLIMITED_COLUMNS = 100_000

SEGMENT = re.compile(r"[A-Za-z0-9_.:@-]+")

Json = Annotated[bool, typer.Option("--json", help="Print the API's JSON instead of a table.")]

IfMatch = Annotated[str | None, typer.Option(help="The etag of what you mean to change.")]
TenantOption = Annotated[str, typer.Option("--tenant", "-t", help="The tenant's slug or id.")]
AdapterName = Annotated[str, typer.Argument(metavar="ADAPTER", help="The adapter's name or id.")]
VersionName = Annotated[
    str, typer.Argument(metavar="VERSION", help="For instance v2, or a version's id.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--metadata", help="<name>=<value>, a label of your own; repeatable."),
]
NoLabels = Annotated[bool, typer.Option("--no-metadata", help="Take all of its labels away.")]

stderr = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


@dataclass(frozen=True, slots=True)
class Target:
    """Where the admin API is and what opens it, as far as the command line says."""

    url: str | None
    key: str | None
    data_dir: Path


@dataclass(frozen=True, slots=True)
class AdminClient:
    """Calls under `/admin/v1`. What is not a success ends the command with a message."""

    http: httpx.Client

    def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self.send(method, path, **options)
        if not response.is_success:
            fail(describe_error(response))
        body = response.json()
        assert isinstance(body, dict)
        return body

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self.http.request(method, f"/admin/v1{path}", **options)
        except httpx.TransportError as error:
            fail(f"{self.http.base_url} does not answer: {error}")

    def list_all(self, path: str) -> Iterator[dict[str, Any]]:
        """Every row of a list, page by page."""
        after = None
        while True:
            query = {"limit": PAGE_SIZE} | ({"after": after} if after else {})
            page = self.call("GET", path, params=query)
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["last_id"]


def open_client(target: Target) -> AdminClient:
    """A client by options and environment, else by what a local Tenfold left in its folder."""
    url = target.url or _remembered(target.data_dir / "demo.json", "admin_url") or DEFAULT_URL
    key = target.key or _remembered(target.data_dir / "secrets.json", "admin_key")
    if key is None:
        fail("no admin key: set TENFOLD_ADMIN_KEY or pass --key")
    headers = {"authorization": f"Bearer {key}"}
    # A proxy of the environment is for the world outside, and would not find this machine.
    trust_env = not _is_this_machine(url)
    return AdminClient(
        httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=trust_env)
    )


def client_of(context: typer.Context) -> AdminClient:
    """The client that the options before the command describe."""
    target = context.obj
    assert isinstance(target, Target)
    client = open_client(target)
    context.call_on_close(client.http.close)
    return client


def path_of(*segments: str) -> str:
    """A path of the API. Ends the command where a name would lead to another object's."""
    for segment in segments:
        if not SEGMENT.fullmatch(segment) or segment in (".", ".."):
            fail(f"{segment!r} is no name or id")
    return "".join(f"/{segment}" for segment in segments)


def adapter_path(tenant: str, adapter: str, *below: str) -> str:
    """The path of an adapter, or of what is below it."""
    return path_of("tenants", tenant, "adapters", adapter, *below)


def patience(wait_s: float) -> httpx.Timeout:
    """For an answer that the server may take `wait_s` seconds for, and the usual time besides."""
    return httpx.Timeout(TIMEOUT_S, read=TIMEOUT_S + wait_s)


def confirm(question: str, *, yes: bool) -> None:
    """Ends the command unless somebody says yes, here or with `--yes`."""
    if not yes:
        typer.confirm(question, abort=True, err=True)


def labels_of(options: Sequence[str]) -> dict[str, str]:
    """What `--metadata a=1 --metadata b=2` says."""
    labels = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not (name and equals):
            fail(f"{option}: expected <name>=<value>")
        labels[name] = value
    return labels


def labels_to_set(options: Sequence[str] | None, *, none: bool) -> dict[str, Any]:
    """The part of a change that is about labels; empty where they stay as they are."""
    refuse_both(bool(options), none)
    return {"metadata": labels_of(options or ())} if options or none else {}


def refuse_both(*given: bool) -> None:
    """Ends the command where options say the contrary of each other."""
    if sum(given) > 1:
        fail("two options that say the contrary: see --help")


def meant_for(if_match: str | None) -> dict[str, str]:
    """The headers of a change that is meant for the state with this etag, or for any."""
    return {} if if_match is None else {"if-match": if_match}


def describe_error(response: httpx.Response) -> str:
    """One line for the error, and one for each finding of an upload's report."""
    try:
        error = response.json()["error"]
        lines = [f"{response.status_code} {error['code']}: {error['message']}"]
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status_code}"
    return "\n".join([*lines, *describe_checks(report_of(response).get("checks", []))])


def report_of(response: httpx.Response) -> Mapping[str, Any]:
    """What was found in the files that an error is about; empty where it is about none."""
    try:
        return dict(response.json()["error"].get("report", {}))
    except (ValueError, KeyError, TypeError):
        return {}


def describe_checks(checks: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"  {check['severity']} {check['rule']}: {check['message']}" for check in checks]


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """A table of some columns on standard output; whole, unless a terminal has an edge."""
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    width = None if sys.stdout.isatty() else UNLIMITED_COLUMNS
    Console(width=width, soft_wrap=True, highlight=False, markup=False).print(table)


def answer(
    value: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Shows an object, or a list of them: as the API's JSON, or some columns as a table."""
    if as_json:
        show_json(value)
    else:
        show([value] if isinstance(value, Mapping) else value, columns)


def show_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def fail(message: str) -> NoReturn:
    stderr.print(f"tenfold: {message}")
    raise typer.Exit(1)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _is_this_machine(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _remembered(path: Path, field: str) -> str | None:
    try:
        value = json.loads(path.read_text())[field]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None
