"""`tenfold admin request ...`: single requests, as they were accepted and billed."""

from __future__ import annotations

import typer

from app.cli.admin_client import Json, client_of, path_of, show, show_json

COLUMNS = ("id", "tenant_id", "key_id", "model", "state", "num_prompt_tokens", "accepted_at")
LEDGER = (
    "event",
    "finish_reason",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_generated_tokens",
    "queue_ms",
    "engine_id",
    "recorded_at",
)

request = typer.Typer(name="request", help="Look up single requests.", no_args_is_help=True)


@request.command("show")
def show_one(context: typer.Context, request_id: str, as_json: Json = False) -> None:
    """Show how a request was accepted, and its rows of the ledger."""
    found = client_of(context).call("GET", path_of("requests", request_id))
    if as_json:
        show_json(found)
    else:
        show([found], COLUMNS)
        show(found["events"], LEDGER)
