"""What a client is told of a request that an engine could not serve."""

from __future__ import annotations

import pytest

from app.completions.engine_errors import to_api_error
from app.errors import NO_RETRY
from engine.messages import EngineError


@pytest.mark.parametrize("code", ["request_poisoned", "nonfinite_logits"])
def test_what_would_fail_again_is_not_to_be_retried(code: str) -> None:
    error = to_api_error(EngineError(code=code, message="why"))
    assert (error.status, error.code, error.message) == (500, code, "why")
    assert NO_RETRY.items() <= error.headers.items()


def test_control_another_failure_keeps_its_code_and_may_be_retried() -> None:
    error = to_api_error(EngineError(code="internal_error", message="why"))
    assert (error.status, error.code) == (500, "internal_error")
    assert "why" not in error.message and not error.headers
