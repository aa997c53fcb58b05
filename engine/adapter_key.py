"""What an adapter is known by on an engine: (tenant_id, digest), never a name.

Knows nothing of where it is. Invariant: two tenants' equal adapters have two keys, so that nothing
reveals what another tenant owns; certificates and locators are no part of it.
"""

from __future__ import annotations

from engine.messages import AdapterRef

AdapterKey = tuple[str, str]
"""(tenant_id, digest)"""


def adapter_key(ref: AdapterRef) -> AdapterKey:
    return (ref.tenant_id, ref.digest)
