"""`tenfold admin ...`: what an operator does, over the admin API.

Knows nothing of the registry. The commands are in the files beside this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.admin_adapters import adapter
from app.cli.admin_audit import audit
from app.cli.admin_client import Target
from app.cli.admin_keys import key
from app.cli.admin_plans import explain, limits, plan
from app.cli.admin_tenants import tenant
from app.cli.admin_usage import price, usage

admin = typer.Typer(name="admin", help="Manage tenants, keys and adapters.", no_args_is_help=True)
admin.add_typer(tenant)
admin.add_typer(key)
admin.add_typer(adapter)
admin.add_typer(audit)
admin.add_typer(usage)
admin.add_typer(price)
admin.add_typer(plan)
admin.add_typer(limits)
admin.command("explain")(explain)


@admin.callback()
def connect(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(envvar="TENFOLD_ADMIN_URL", help="Admin API.  [default: 127.0.0.1:8001]"),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(envvar="TENFOLD_ADMIN_KEY", help="Admin key.  [default: the data folder's]"),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option(help="Folder of a Tenfold on this machine, to find URL and key.")
    ] = Path(".tenfold"),
) -> None:
    """Manage tenants, keys and adapters."""
    # Opened by the command itself, so that `--help` needs no key.
    context.obj = Target(url, key, data_dir)
