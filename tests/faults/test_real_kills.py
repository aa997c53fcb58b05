"""Real engines on a tiny model, killed while 16 clients stream, greedy and with seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from app.launcher.postgres import PostgresServer
from tests.faults.campaign import Campaign, Recorder, num_kills, tell
from tests.faults.campaigns import campaign
from tests.faults.clients import some_questions
from tests.faults.kills import kill_engines
from tests.faults.real_base import write_real_base

pytestmark = pytest.mark.timeout(3600)

NUM_QUESTIONS = 8
MAX_TOKENS = (40, 80)


@pytest.fixture(scope="module")
def real_campaign(
    postgres: PostgresServer, registry_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Campaign]:
    """Two engines, as in production; answers do not depend on who shares a batch."""
    folder = tmp_path_factory.mktemp("faults")
    model = write_real_base(folder / "base")
    command = ("engine", "--model", str(model), "--adapter-store", str(folder / "store"))
    options = ("--batch-invariant", "--threads", "1", "--pool-bytes", str(1 << 24))
    with campaign(
        postgres,
        registry_template,
        model,
        folder,
        (*command, *options),
        num_engines=2,
        num_apis=1,
    ) as opened:
        yield opened


async def test_streams_of_real_engines_survive_kills_byte_for_byte(
    real_campaign: Campaign, record_property: Recorder
) -> None:
    num, stack, rng = num_kills("real"), real_campaign.stack, real_campaign.rng
    asked = some_questions(NUM_QUESTIONS, MAX_TOKENS, random.Random(2), list(real_campaign.digests))
    answers = await real_campaign.undisturbed(asked)
    assert len({answer.text for answer in answers.values()}) == len(asked)
    verdict = await real_campaign.run(
        asked, answers, lambda clients: kill_engines(stack, clients, num, rng, together=1)
    )
    tell(record_property, verdict, f"{num} kills of real engines", num_kills=num)
    assert verdict.moved >= num
