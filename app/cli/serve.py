"""`tenfold serve`: Tenfold on this machine, for one base model, with no tenants yet.

Knows nothing of how processes are run. The registry and queue are this folder's own unless
TENFOLD_DATABASE_URL or TENFOLD_REDIS_URL name others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from app.cli.options import AdminPort, BatchInvariant, DataDir, Device, Dtype, Port, Threads
from app.cli.progress import ConsoleSteps
from app.cli.session import run_in_foreground
from app.launcher.model_source import is_hub_id, resolve_model
from app.launcher.stack import Stack, StackConfig


def serve(
    model: Annotated[str, typer.Option(help="Folder of a Llama-family model, or a Hub id.")],
    model_id: Annotated[
        str | None, typer.Option(help="Name under which the base is served.")
    ] = None,
    data_dir: DataDir = Path(".tenfold"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 8000,
    admin_port: AdminPort = None,
    threads: Threads = None,
    device: Device = None,
    dtype: Dtype = None,
    batch_invariant: BatchInvariant = None,
    pool_bytes: Annotated[
        int | None, typer.Option(min=1, help="Memory for KV cache and adapters together.")
    ] = None,
) -> None:
    """Serve a base model and its tenants' adapters until Ctrl-C."""
    console = Console(stderr=True)
    config = StackConfig(
        data_dir=data_dir.absolute(),
        host=host,
        port=port,
        admin_port=admin_port or port + 1,
        model_id=model_id or (model if is_hub_id(model) else None),
        threads=threads,
        device=device,
        dtype=dtype,
        batch_invariant=batch_invariant,
        pool_bytes=pool_bytes,
        database_url=os.environ.get("TENFOLD_DATABASE_URL"),
        owner_url=os.environ.get("TENFOLD_OWNER_DATABASE_URL"),
        worker_url=os.environ.get("TENFOLD_WORKER_DATABASE_URL"),
        redis_url=os.environ.get("TENFOLD_REDIS_URL"),
        admin_key=os.environ.get("TENFOLD_ADMIN_KEY"),
        key_pepper=os.environ.get("TENFOLD_KEY_PEPPER"),
        queue_secret=os.environ.get("TENFOLD_QUEUE_SECRET"),
        envelope_keys=os.environ.get("TENFOLD_ENVELOPE_KEYS"),
    )
    stack = Stack(config, ConsoleSteps(console))

    def prepare_model() -> Path:
        if not is_hub_id(model):
            return resolve_model(model)
        with stack.steps.step(f"Fetching {model}"):
            return resolve_model(model)

    def announce() -> None:
        typer.echo(f"Tenants call    {stack.base_url}/v1")
        typer.echo(f"Operators call  {stack.admin_url}/admin/v1")
        if stack.is_new_admin_key:
            typer.echo(f"Admin key       {stack.admin_key}")
            typer.echo(f"It is shown this once, and kept in {config.data_dir / 'secrets.json'}.")
        typer.echo("Ctrl-C stops everything.")

    run_in_foreground(stack, console, prepare_model, announce)
