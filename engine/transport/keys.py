"""The names of everything Tenfold keeps in Redis.

Knows nothing of what is stored there. Invariant: all keys share one hash tag, so that a script may
touch any of them; whatever is not O(tenants) has an expiry or is deleted with its request.

    tenants             zset    tenants with a queue, by virtual token counter
    vtc                 hash    tenant -> virtual token counter (prompt + 2 x generated tokens)
    level               string  the counter of the tenant served last: where newcomers start
    arrivals            string  counts requests; the order within a tenant
    queue:<tenant>      zset    request ids by arrival
    request:<id>        hash    message, tenant, api, prompt_tokens, max_tokens, adapter, epoch,
                                arrived_ms, arrival
    leases              hash    request id -> epoch:boot:engine; no boot: handed over
    grant:<engine>      hash    what the last lease gave, until the next one
    idle                zset    engines that asked and found nothing, by free tokens
    control:<engine>    list    Abort and Wake
    engines             set     engines that may be alive
    engine:<engine>     hash    heartbeat, expires
    resident:<engine>   set     adapters that an engine holds, as tenant/digest
    out:<api>           stream  one entry per step of an engine, expires
    api:<api>           string  an API process lives, expires
    usage               stream  what requests used; an entry stays until it is in the ledger
    generation          string  a token that a server which lost its data no longer has
    admission:<tenant>  zset    requests in flight by the expiry of their reservation
"""

from __future__ import annotations

from engine.messages import AdapterRef

PREFIX = "{tenfold}:"
GENERATION = f"{PREFIX}generation"
IDLE = f"{PREFIX}idle"
LEASES = f"{PREFIX}leases"
USAGE = f"{PREFIX}usage"


def api(api_id: str) -> str:
    return f"{PREFIX}api:{api_id}"


def control(engine_id: str) -> str:
    return f"{PREFIX}control:{engine_id}"


def out(api_id: str) -> str:
    return f"{PREFIX}out:{api_id}"


def queue(tenant_id: str) -> str:
    return f"{PREFIX}queue:{tenant_id}"


def resident(engine_id: str) -> str:
    return f"{PREFIX}resident:{engine_id}"


def admission(tenant_id: str) -> str:
    return f"{PREFIX}admission:{tenant_id}"


def adapter_member(adapter: AdapterRef | None) -> str:
    """How an adapter is named as a value: by (tenant, digest); the base model is empty."""
    return "" if adapter is None else f"{adapter.tenant_id}/{adapter.digest}"
