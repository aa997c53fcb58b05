"""The command `tenfold`: one file per command, mounted here.

Knows nothing of HTTP handlers, SQL or torch: a command that runs a process replaces itself with it.
"""

from __future__ import annotations

import typer

from app.cli.adapter import adapter
from app.cli.admin import admin
from app.cli.demo import demo
from app.cli.doctor import doctor
from app.cli.drain import drain
from app.cli.fetch import fetch
from app.cli.processes import PASS_THROUGH, api, engine, migrate, worker
from app.cli.serve import serve
from app.cli.smoke import smoke

app = typer.Typer(
    name="tenfold",
    help="Multi-tenant multi-LoRA serving: one base model, thousands of adapters, one batch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(serve)
app.command(**PASS_THROUGH)(engine)
app.command()(worker)
app.command()(api)
app.command()(migrate)
app.command()(drain)
app.command()(fetch)
app.command()(smoke)
app.command(**PASS_THROUGH)(doctor)
app.add_typer(adapter)
app.add_typer(admin)


def main() -> None:
    """Entry point of the `tenfold` script."""
    app()
