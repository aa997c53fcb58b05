"""The names of everything Tenfold keeps in Redis.

Knows nothing of what is stored there. Invariant: all keys share one hash tag, so that a script may
touch any of them; whatever is not O(tenants) has an expiry or is deleted with its request.

    tenants             zset    tenants that wait, not only with flex requests, by virtual counter
    tenants_priority    zset    those of them with a priority request, by the same counter
    tenants_flex        zset    tenants with a flex request, by the same counter
    tenants_reserved    zset    tenants that wait, not only with flex requests, and have a reserved
                                share of all service, by their tags
    vtc                 hash    tenant -> virtual token counter: prompt + 2 x generated tokens, over
                                the tenant's weight
    weights             hash    tenant -> weight, where it is not 1
    shares              hash    tenant -> reserved share, where there is one
    tags                hash    tenant -> the value of `served` at which more of it is due
    served              string  what all tenants got together: prompt + 2 x generated tokens
    level               string  the counter of the tenant served last: where newcomers start
    arrivals            string  counts requests; the order within a tenant
    queue:<tenant>      zset    request ids by service tier, then by arrival
    flex                zset    queued flex requests that still yield, by the time they arrived
    num_queued          string  requests in all queues
    service             hash    how many requests a second the engines take, expires
    request:<id>        hash    message, tenant, api, prompt_tokens, max_tokens, adapter, epoch,
                                arrived_ms, arrival, deadline_ms; passed_ms since it was first
                                passed for affinity; is_expired after its deadline (expires
                                then, and where its engine said goodbye)
    leases              hash    request id -> epoch:boot:engine; no boot: handed over
    grant:<engine>      hash    what the last lease gave, until the next one
    idle                zset    engines that asked and found nothing, by free tokens
    control:<engine>    list    Abort and Wake
    engines             set     engines that may be alive
    engine:<engine>     hash    heartbeat, expires
    resident:<engine>   set     adapters that an engine holds, as tenant/digest
    residency:<engine>  hash    tenant/digest -> the engine's sealed report on it, expires
    command:<id>        hash    engine -> its sealed answer to an operator's command, expires
    out:<api>           stream  one entry per step of an engine, expires
    api:<api>           string  an API process lives, expires
    usage               stream  what requests used; an entry stays until it is in the ledger
    samples:<adapter>:<alias>  list  how requests for a weighted alias went, expires
    shadows:<adapter>:<alias>  list  how far answers and their shadows agreed, expires
    golden:<tenant>:<day>  string  golden prompts that were to be asked on that day, expires
    generation          string  a token that a server which lost its data no longer has
    places:<subject>    zset    requests in flight by the expiry of their lease; this and what
                                else admission keeps: `app/admission/lua/counters.lua`
    revocations         channel a key or a tenant has changed: forget what is known of any
"""

from __future__ import annotations

from engine.messages import AdapterRef

PREFIX = "{tenfold}:"
GENERATION = f"{PREFIX}generation"
ENGINES = f"{PREFIX}engines"
IDLE = f"{PREFIX}idle"
LEASES = f"{PREFIX}leases"
REVOCATIONS = f"{PREFIX}revocations"
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


def residency(engine_id: str) -> str:
    return f"{PREFIX}residency:{engine_id}"


def command(command_id: str) -> str:
    return f"{PREFIX}command:{command_id}"


def engine(engine_id: str) -> str:
    return f"{PREFIX}engine:{engine_id}"


def samples(adapter_id: str, alias: str) -> str:
    return f"{PREFIX}samples:{adapter_id}:{alias}"


def shadows(adapter_id: str, alias: str) -> str:
    return f"{PREFIX}shadows:{adapter_id}:{alias}"


def golden(tenant_id: str, day: str) -> str:
    return f"{PREFIX}golden:{tenant_id}:{day}"


def places(subject: str) -> str:
    return f"{PREFIX}places:{subject}"


def refusal(request_id: str) -> str:
    return f"{PREFIX}refusal:{request_id}"


def adapter_member(adapter: AdapterRef | None) -> str:
    """How an adapter is named as a value: by (tenant, digest); the base model is empty."""
    return "" if adapter is None else f"{adapter.tenant_id}/{adapter.digest}"
