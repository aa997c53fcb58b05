"""`tenfold smoke`: `helm test` runs it, and so may whoever has just installed.

Knows nothing of the steps (`app.smoke.check`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.admin_client import fail, stderr
from app.smoke.adapter import smallest_adapter
from app.smoke.check import SmokeCheck, SmokeError
from lora.base_spec import BaseSpec, UnsupportedBaseError


def smoke(
    admin_key: Annotated[str, typer.Option(envvar="TENFOLD_ADMIN_KEY")],
    model: Annotated[
        Path, typer.Option(envvar="TENFOLD_MODEL", help="Folder of the base, without weights.")
    ],
    model_id: Annotated[str | None, typer.Option(envvar="TENFOLD_MODEL_ID")] = None,
    url: Annotated[str, typer.Option(help="The tenants' port.")] = "http://127.0.0.1:8000",
    admin_url: Annotated[str, typer.Option(help="The admin port.")] = "http://127.0.0.1:8001",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for all of it.")] = 300,
) -> None:
    """Try a running Tenfold: a tenant, a key, an adapter, an answer, its usage; then removed."""
    try:
        files = smallest_adapter(BaseSpec.from_folder(model, model_id))
        SmokeCheck(url, admin_url, admin_key, files, timeout_s=timeout, say=stderr.print).run()
    except (SmokeError, UnsupportedBaseError) as error:
        fail(str(error))
