"""Which other bases this installation knows by name.

Knows nothing of adapters' files. Two bases can have the same shapes, so that only the name that an
adapter gives tells which of them it was trained on (`lora.base_check`). Invariant: names are
compared, never followed.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.repository import AdapterRepository


async def known_bases(
    session: AsyncSession, tenant_id: str, configured: Collection[str]
) -> frozenset[str]:
    """`configured` (the operator's), and the bases that the tenant's own adapters are of.

    The base that is served may be among them. In the tenant's scope.
    """
    return frozenset(configured) | await AdapterRepository(session, tenant_id).base_model_ids()
