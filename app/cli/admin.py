"""`tenfold admin ...`: what an operator does, over the admin API.

Knows nothing of the registry. The commands are in the files beside this one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.admin_adapters import adapter
from app.cli.admin_aliases import alias
from app.cli.admin_audit import audit
from app.cli.admin_client import Target
from app.cli.admin_erasures import erasure
from app.cli.admin_events import event
from app.cli.admin_imports import import_
from app.cli.admin_keys import key
from app.cli.admin_plans import explain, limits, plan
from app.cli.admin_requests import request
from app.cli.admin_rollouts import rollout
from app.cli.admin_tenants import tenant
from app.cli.admin_uploads import upload
from app.cli.admin_usage import price, usage
from app.cli.admin_versions import version

admin = typer.Typer(
    name="admin", help="Manage tenants, keys, adapters, limits and money.", no_args_is_help=True
)
admin.add_typer(tenant)
admin.add_typer(key)
admin.add_typer(adapter)
admin.add_typer(version)
admin.add_typer(alias)
admin.add_typer(rollout)
admin.add_typer(upload)
admin.add_typer(import_)
admin.add_typer(erasure)
admin.add_typer(event)
admin.add_typer(audit)
admin.add_typer(usage)
admin.add_typer(price)
admin.add_typer(plan)
admin.add_typer(limits)
admin.add_typer(request)
admin.command("explain")(explain)


@admin.callback()
def connect(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(envvar="TENFOLD_ADMIN_URL", help="Admin API.", show_default="127.0.0.1:8001"),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            envvar="TENFOLD_ADMIN_KEY", help="Admin key.", show_default="the data folder's"
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option(help="Folder of a Tenfold on this machine, to find URL and key.")
    ] = Path(".tenfold"),
) -> None:
    """Manage tenants, keys, adapters, limits and money."""
    # Opened by the command itself, so that `--help` needs no key.
    context.obj = Target(url, key, data_dir)
