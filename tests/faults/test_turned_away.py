"""What an API process refuses at its front door, it counts as what it was asked for."""

from __future__ import annotations

import asyncio

import httpx

from app.api import create_app
from app.context import open_context
from app.settings import Settings
from tests.builders.operator import Operator
from tests.builders.tiny_base import MODEL_ID
from tests.builders.waiting import eventually, until

PATH = "/v1/completions"
NO_LAG_S = 1e-9
"""Every event loop is later than that."""


async def test_a_request_that_comes_no_further_than_the_front_door_has_its_route_in_the_metrics(
    settings: Settings, operator: Operator
) -> None:
    acme = await operator.new_tenant("acme")
    late = settings.model_copy(update={"max_loop_lag_s": NO_LAG_S, "api_id": "api-that-is-late"})
    asking: list[asyncio.Task[httpx.Response]] = []
    async with open_context(late) as context:
        transport = httpx.ASGITransport(create_app(context))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://tenfold.test", headers=acme.headers
        ) as client:
            body = {"model": MODEL_ID, "prompt": "abc", "max_tokens": 4}

            def ask() -> None:
                asking.append(asyncio.create_task(client.post(PATH, json=body)))

            async def one_is_refused() -> bool:
                ask()
                await asyncio.wait(asking, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                return any(each.done() for each in asking)

            ask()  # which waits for an engine
            await until(lambda: context.queue.num_in_flight == 1)
            await eventually(one_is_refused)
            [refused] = [each.result() for each in asking if each.done()]
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        counted = context.metrics.render().decode()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert 'method="POST",route="/completions",status="503"} 1.0' in counted
    assert "unmatched" not in counted
