"""`tenfold demo`: everything on this machine, with two tenants, to be tried in a minute.

Knows nothing of how processes are run or of what the adapters say.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import msgspec
import typer
from rich.console import Console

from app.cli.options import AdminPort, BatchInvariant, DataDir, Device, Dtype, Port, Threads
from app.cli.progress import ConsoleSteps
from app.cli.session import run_in_foreground
from app.demo.announcement import announcement
from app.demo.base_model import BASE_MODEL_ID, BaseModelSourceError, ensure_base_model, is_complete
from app.demo.tenants import (
    ADAPTER_FOLDERS,
    TENANTS,
    Admin,
    DemoFile,
    read_demo_file,
    set_up_tenant,
)
from app.launcher.errors import LauncherError
from app.launcher.secrets_file import write_private
from app.launcher.stack import Stack, StackConfig


def demo(
    data_dir: DataDir = Path(".tenfold"),
    port: Port = 8000,
    admin_port: AdminPort = None,
    threads: Threads = None,
    device: Device = None,
    dtype: Dtype = None,
    batch_invariant: BatchInvariant = None,
) -> None:
    """Start everything with two demo tenants, acme and globex, and serve until Ctrl-C."""
    console = Console(stderr=True)
    config = StackConfig(
        data_dir=data_dir.absolute(),
        port=port,
        admin_port=admin_port or port + 1,
        model_id=BASE_MODEL_ID,
        threads=threads,
        device=device,
        dtype=dtype,
        batch_invariant=batch_invariant,
        admin_key=os.environ.get("TENFOLD_ADMIN_KEY"),
    )
    stack = Stack(config, ConsoleSteps(console))
    demo_path = config.data_dir / "demo.json"

    def announce() -> None:
        ready = _set_up_tenants(stack, demo_path)
        typer.echo(announcement(ready, config.data_dir, Path(sys.executable).parent))

    run_in_foreground(stack, console, lambda: _prepare_model(stack), announce)


def _prepare_model(stack: Stack) -> Path:
    folder = stack.config.data_dir / "models" / BASE_MODEL_ID.rpartition("/")[2]
    if is_complete(folder):
        return folder
    try:
        with stack.steps.step("Converting the base model") as step:
            return ensure_base_model(folder, step.update)
    except BaseModelSourceError as error:
        raise LauncherError(str(error)) from error


def _set_up_tenants(stack: Stack, demo_path: Path) -> DemoFile:
    """Make or find the tenants and write `demo.json`. Raises LauncherError."""
    known = read_demo_file(demo_path)
    keys = {name: tenant.api_key for name, tenant in known.tenants.items()} if known else {}
    admin = Admin(stack.admin_url, stack.admin_key)
    try:
        with stack.steps.step("Setting up tenants acme and globex"):
            tenants = {
                slug: set_up_tenant(
                    admin, stack.base_url, slug, ADAPTER_FOLDERS / slug, keys.get(slug)
                )
                for slug in TENANTS
            }
    except httpx.TransportError as error:
        stack.check_running()
        raise LauncherError(f"the API did not answer: {error!r}") from error
    finally:
        admin.close()
    demo = DemoFile(
        base_url=stack.base_url,
        admin_url=stack.admin_url,
        admin_key=stack.admin_key,
        tenants=tenants,
    )
    write_private(demo_path, msgspec.json.format(msgspec.json.encode(demo)) + b"\n")
    return demo
