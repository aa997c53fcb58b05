"""Levers of `tenfold admin version`: what engines have of a version, and what they are to do.

Knows nothing of engines: what is shown is what the API says that they said.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.admin_client import (
    AdapterName,
    Json,
    TenantOption,
    VersionName,
    adapter_path,
    answer,
    client_of,
    fail,
    patience,
    show,
    show_json,
)

REPLICAS = ("engine_id", "state", "since", "bytes", "generation", "pinned_until", "error")
ANSWERS = ("engine_id", "outcome", "error")
EVALUATED = ("version_id", "num", "failed", "failed_by_base", "prod", "failed_by_prod")
PROBED = ("finish_reason", "prompt_tokens", "completion_tokens", "error")
EVALUATE_S = 120.0
PROBE_S = 60.0
HOUR_S = 3600

Replicas = Annotated[
    int | None, typer.Option(min=1, help="On so many engines.", show_default="all")
]
Wait = Annotated[float, typer.Option(min=0, max=60, help="Seconds to wait for engines' answers.")]


def residency(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """Which engines have a version."""
    path = adapter_path(tenant, name, "versions", version, "residency")
    found = client_of(context).call("GET", path)
    show_json(found) if as_json else show(found["data"], REPLICAS)


def preload(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    replicas: Replicas = None,
    wait: Wait = 10,
    as_json: Json = False,
) -> None:
    """Have engines load a version before anybody asks for it."""
    body = {"replicas": replicas}
    _pull(context, (tenant, name, version, "preload"), wait, body, as_json=as_json)


def pin(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    hours: Annotated[
        float | None,
        typer.Option(min=0, help="For so long, thirty days at most.", show_default="1"),
    ] = None,
    replicas: Replicas = None,
    wait: Wait = 10,
    as_json: Json = False,
) -> None:
    """Have engines load a version and keep it."""
    body: dict[str, Any] = {"replicas": replicas}
    if hours is not None:
        body["until"] = int(time.time() + hours * HOUR_S)
    _pull(context, (tenant, name, version, "pin"), wait, body, as_json=as_json)


def evict(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    wait: Wait = 10,
    as_json: Json = False,
) -> None:
    """Have engines free a version's memory; those that use it are busy."""
    _pull(context, (tenant, name, version, "evict"), wait, None, as_json=as_json)


def probe(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    prompt: Annotated[str | None, typer.Argument(help="What it is asked.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="As a user's message, through its chat template.")
    ] = False,
    messages: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A conversation instead: a JSON list."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=512)] = 64,
    as_json: Json = False,
) -> None:
    """Ask a version something before anybody else does. Billed to nobody."""
    if (prompt is None) == (messages is None):
        fail("either a prompt or --messages is needed")
    if messages is not None:
        asked = {"messages": _conversation(messages)}
    else:
        asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    path = adapter_path(tenant, name, "versions", version, "probe")
    body = {**asked, "max_tokens": max_tokens}
    found = client_of(context).call("POST", path, json=body, timeout=patience(PROBE_S))
    if as_json:
        show_json(found)
    else:
        show([found], PROBED)
        typer.echo(found["text"] or "")


def evaluate(
    context: typer.Context,
    name: AdapterName,
    version: VersionName,
    tenant: TenantOption,
    as_json: Json = False,
) -> None:
    """Ask a version, its base and prod the golden prompts that the version brought."""
    path = adapter_path(tenant, name, "versions", version, "evaluate")
    found = client_of(context).call("POST", path, timeout=patience(EVALUATE_S))
    answer(found, EVALUATED, as_json=as_json)


def _conversation(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        fail(f"{path}: expected a JSON list of messages: {error}")


def _pull(
    context: typer.Context,
    named: tuple[str, str, str, str],
    wait: float,
    body: dict[str, Any] | None,
    *,
    as_json: bool,
) -> None:
    """named: the tenant, the adapter, its version, and the lever."""
    tenant, adapter, version, lever = named
    path = adapter_path(tenant, adapter, "versions", version, lever)
    pulled = client_of(context).call(
        "POST", path, json=body, params={"wait": wait}, timeout=patience(wait)
    )
    show_json(pulled) if as_json else show(pulled["engines"], ANSWERS)
