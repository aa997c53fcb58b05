"""Rollouts with golden prompts, and engines that answer them as a test says."""

from __future__ import annotations

from collections import Counter
from typing import Any

from app.context import AppContext
from app.rollouts.golden import MAX_ASKS
from engine.messages import EngineError, EngineRequest
from tests.builders.operator import Operator
from tests.corpus.lifecycle.conftest import BOT

ROLLOUTS, PROD = f"{BOT}/rollouts", f"{BOT}/aliases/prod"
SOAK_S = 60
GATE = {"metric": "golden_failure_rate", "max_regression_pct": 10}
GOLDEN = [
    {"prompt": "The capital of France?", "exact": "Paris"},
    {"messages": [{"role": "user", "content": "A number, please."}], "regex": "^[0-9]+$"},
    {"prompt": "As JSON:", "json_schema": {"type": "object", "required": ["city"]}},
]
RIGHT = {"The capital of France?": " Paris\n", "A number": "42", "As JSON:": '{"city": "Paris"}'}


class Replies:
    """What each version says to a prompt; what engines were asked."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self.wrong: dict[str, set[str]] = {}  # digest -> beginnings of prompts
        self.broken: dict[str, str] = {}  # digest -> an engine's error
        self.flaky: set[str] = set()  # digests that fail all but the last asking
        self.seen: list[EngineRequest] = []
        self._times: Counter[tuple[str, str]] = Counter()

    def __call__(self, request: EngineRequest) -> list[int] | EngineError:
        self.seen.append(request)
        assert request.adapter is not None
        digest = request.adapter.digest
        if digest in self.broken:
            return EngineError(code=self.broken[digest], message="broken")
        asked = self._context.tokenizer.model.decode(request.prompt_token_ids)
        (prompt,) = [each for each in RIGHT if each in asked]
        self._times[digest, prompt] += 1
        is_wrong = prompt in self.wrong.get(digest, set()) or (
            digest in self.flaky and self._times[digest, prompt] < MAX_ASKS
        )
        said = "wrong" if is_wrong else RIGHT[prompt]
        return self._context.tokenizer.encode_prompt(said)


async def start(operator: Operator, *, path: str = ROLLOUTS, **fields: Any) -> dict[str, Any]:
    body = {"alias": "prod", "to": "v2", "soak_s": SOAK_S, "gates": [GATE], "golden": GOLDEN}
    return await operator.done("POST", path, json={**body, **fields})


async def shown(
    operator: Operator, rollout: dict[str, Any], *, path: str = ROLLOUTS
) -> dict[str, Any]:
    return await operator.done("GET", f"{path}/{rollout['id']}")
