"""What a worker knows of the lines that it runs goes with them, however they end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from app.batches.line_runner import LineRunner
from app.batches.lines import InputLine
from app.batches.patience import Patience
from app.batches.schemas import CHAT
from app.batches.serving import open_serving
from app.ids import new_id
from app.settings import Settings
from tests.billing.batches.inputs import chat_line
from tests.builders.clock import Clock
from tests.builders.operator import Tenant
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import until
from tests.fixtures.servers import TestDatabase


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_line_is_known_while_it_runs_and_not_after(
    settings: Settings,
    database: TestDatabase,
    clock: Clock,
    acme: Tenant,
    engine: StubEngine,
    is_cancelled: bool,
) -> None:
    engine.pause()
    own = settings.model_copy(update={"database_url": database.worker_url})
    async with open_serving(own, clock.now) as serving:
        runner = LineRunner(
            context=serving.context,
            acceptance=serving.acceptance,
            take_back=serving.take_back,
            batch_id=new_id("bat"),
            tenant_id=acme.id,
            key_id=acme.key_id,
            endpoint=CHAT,
            num_claims=1,
            winding_up=asyncio.Event(),
        )
        line = InputLine(1, "a", chat_line("a")["body"])
        patience = Patience(clock.now() + timedelta(hours=1))
        running = asyncio.create_task(runner.run(line, patience))
        await until(lambda: engine.num_running == 1, timeout_s=30)
        assert serving.acceptance.num_known == 1  # control
        if is_cancelled:
            running.cancel()
        engine.resume()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled() == is_cancelled
        assert serving.acceptance.num_known == 0
