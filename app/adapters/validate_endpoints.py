"""A dry run over REST: what an upload would be answered, and its numbers' check with it.

Knows no rules and no SQL. Invariant: nothing of what was sent stays, and nothing is changed.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from app.adapters.intake import dry_run
from app.adapters.structure_check import Checked
from app.adapters.tenancy import TenantId
from app.context import Context

validate_router = APIRouter(prefix="/adapters/{adapter}/validate")


class ValidationView(BaseModel):
    """What an upload of the same files would be: its digest, what is in it, and all warnings."""

    object: Literal["adapter.validation"] = "adapter.validation"
    digest: str
    manifest: dict[str, Any]
    report: dict[str, Any]

    @classmethod
    def of(cls, checked: Checked) -> ValidationView:
        return cls(
            digest=checked.digest, manifest=checked.summary, report=checked.report("accepted")
        )


@validate_router.post("")
async def validate(
    adapter: str,
    request: Request,
    tenant_id: TenantId,
    context: Context,
    strict: bool = False,
) -> ValidationView:
    """Check the two files of an adapter as an upload does, and keep nothing.

    `strict=true`: what is otherwise a warning refuses it.
    """
    return ValidationView.of(await dry_run(context, tenant_id, adapter, request, strict=strict))
