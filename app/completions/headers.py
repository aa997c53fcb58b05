"""The headers of every inference response, streamed or not; request ids are the middleware's.

Knows nothing of bodies. Invariant: an adapter's answer names the exact version that made it.
"""

from __future__ import annotations

import time

from app.admission.headers import ratelimit_headers
from app.completions.service import Answer

OPENAI_VERSION = "2020-10-01"


def response_headers(answer: Answer, started_at: float) -> dict[str, str]:
    """`started_at` is a `time.perf_counter()` reading."""
    headers = {
        "openai-version": OPENAI_VERSION,
        "openai-organization": answer.principal.tenant_slug,
        "x-service-tier": answer.asked.tier.value,
        "openai-processing-ms": str(int((time.perf_counter() - started_at) * 1000)),
    }
    if answer.model.version is not None and answer.model.digest is not None:
        headers["x-adapter-version"] = answer.model.version
        headers["x-adapter-digest"] = answer.model.digest
    for decision in answer.decisions:
        headers |= ratelimit_headers(decision)
    return headers
