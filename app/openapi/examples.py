"""What is sent and answered, where a schema alone does not say it well, or there is none.

By operation: `METHOD /path` below `/v1` or `/admin/v1`, and below `/tenants/{tenant}` for what
tenants do themselves as well. Knows nothing of FastAPI. Invariant: nothing here is a secret that
works anywhere.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.completions.responses import ChatCompletion, TextCompletion
from app.openapi.samples import AT, HEX, NUMBER

MODEL = "support-bot"
USAGE = {
    "prompt_tokens": 21,
    "completion_tokens": 9,
    "total_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 16},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
CHAT_ID = f"chatcmpl-{HEX[:32]}"
FILES = {
    "type": "object",
    "required": ["adapter_config.json", "adapter_model.safetensors"],
    "properties": {
        "adapter_config.json": {"type": "string", "format": "binary"},
        "adapter_model.safetensors": {"type": "string", "format": "binary"},
        "chat_template.jinja": {"type": "string", "format": "binary"},
        "eval.jsonl": {"type": "string", "format": "binary"},
    },
}
FILES_EXAMPLE = {
    "adapter_config.json": "(the file that PEFT's save_pretrained wrote)",
    "adapter_model.safetensors": "(the other one)",
}

BODIES: dict[str, dict[str, Any]] = {
    "POST /adapters/{adapter}/versions": {
        "multipart/form-data": {"schema": FILES, "example": FILES_EXAMPLE}
    },
    "POST /adapters/{adapter}/validate": {
        "multipart/form-data": {"schema": FILES, "example": FILES_EXAMPLE}
    },
    "PUT /adapters/{adapter}/uploads/{upload}/files/{path}/parts/{number}": {
        "application/octet-stream": {
            "schema": {"type": "string", "format": "binary"},
            "example": "(bytes of the part)",
        }
    },
    "POST /files": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"enum": ["batch", "user_data"]},
                },
            },
            "example": {"file": "(a JSON Lines file)", "purpose": "batch"},
        }
    },
}
"""Bodies that routes read by themselves, as content by media type."""

REQUESTS: dict[str, Any] = {
    "POST /chat/completions": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Can I send the shoes back?"}],
        "max_tokens": 64,
    },
    "POST /completions": {"model": MODEL, "prompt": "Dear customer,", "max_tokens": 64},
    "POST /tenants": {"slug": "acme", "external_id": "crm-4711", "plan": None},
    "PATCH /tenants/{tenant}": {"metadata": {"team": "support"}},
    "POST /keys": {"name": "production", "scopes": ["inference"]},
    "POST /adapters": {"name": MODEL, "description": "Answers about returns."},
    "PATCH /adapters/{adapter}": {"metadata": {"team": "support"}},
    "PUT /adapters/{adapter}/aliases/{alias}": {"version": "v1"},
    "POST /adapters/{adapter}/rollouts": {
        "alias": "prod",
        "to": "v2",
        "gates": [{"metric": "error_rate", "max": 0.02}],
    },
    "POST /adapters/{adapter}/versions/{version}/deprecate": {"date": "2099-01-31"},
    "POST /adapters/{adapter}/versions/{version}/probe": {"prompt": "Dear customer,"},
    "POST /plans": {"name": "gold", "limits": {"tokens_per_minute": 100_000}, "weight": 2},
    "PUT /plans/{plan}": {"limits": {"tokens_per_minute": 200_000}, "weight": 2},
    "PUT /tenants/{tenant}/plan": {"plan": "gold"},
    "PUT /tenants/{tenant}/limits": {"limits": {"concurrency": 32}, "weight": 2},
    "PUT /keys/{key}/limits": {"requests_per_minute": 60},
    "PUT /adapters/{adapter}/limits": {"requests_per_minute": 60},
    "POST /adapters/{adapter}/uploads": {
        "files": [
            {"path": "adapter_config.json", "bytes": 731, "sha256": HEX},
            {"path": "adapter_model.safetensors", "bytes": 3_686_400, "sha256": HEX},
        ]
    },
    "POST /adapters/{adapter}/imports": {"source": "hf://acme/support-bot"},
    "POST /batches": {
        "input_file_id": f"fil_{NUMBER}",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "POST /prices": {"currency": "eur", "input": "0.15", "cached": "0.075", "output": "0.60"},
}
"""What is sent, where the least that is required would say too little."""

RESPONSES: dict[str, Any] = {
    "POST /chat/completions": {
        "id": CHAT_ID,
        "object": "chat.completion",
        "created": AT,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Yes, within 30 days.",
                    "refusal": None,
                },
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        "system_fingerprint": "fp_4f1d7c9a_0b3e5826",
    },
    "POST /completions": {
        "id": f"cmpl-{HEX[:32]}",
        "object": "text_completion",
        "created": AT,
        "model": MODEL,
        "choices": [{"index": 0, "text": " thank you.", "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
        "system_fingerprint": "fp_4f1d7c9a_0b3e5826",
    },
    "GET /metrics": "# TYPE tenfold_requests_total counter\n",
    "GET /files/{file}/content": '{"custom_id": "1"}\n',
    "GET /adapters/{adapter}/versions/{version}/report": {
        "status": "active",
        "digest": f"sha256:{HEX}",
        "checks": [],
    },
    "GET /adapters/{adapter}/versions/{version}/files/{path}": "(bytes of the file)",
    "GET /adapters/{adapter}/imports/{import_id}/events": "event: progress\ndata: {}\n\n",
}
"""Answers of routes that declare none."""

ANSWERS: dict[str, type[msgspec.Struct]] = {
    "POST /chat/completions": ChatCompletion,
    "POST /completions": TextCompletion,
}
"""What these routes answer, where they do not stream."""

ERROR = {
    "error": {
        "message": "No such tenant.",
        "type": "invalid_request_error",
        "param": "tenant",
        "code": "not_found",
    }
}
PARAMETERS: dict[str, Any] = {
    "upload": f"upl_{NUMBER}",
    "import_id": f"imp_{NUMBER}",
    "rollout": f"rol_{NUMBER}",
    "batch": f"bat_{NUMBER}",
    "file": f"fil_{NUMBER}",
    "idempotency-key": "2026-01-01/acme/4711",
    "if-match": HEX[:32],
}
"""Where `samples.FIELDS` has none of the name."""
