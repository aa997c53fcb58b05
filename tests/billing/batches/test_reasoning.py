"""A batch adds up what of its answers was reasoning."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.batches.schemas import TEXT
from app.settings import Settings
from tests.billing.batches.conftest import Working
from tests.billing.batches.inputs import Submitter, text_line
from tests.builders.stub_engine import StubEngine
from tests.builders.tiny_base import write_thinking_base


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(update={"model": write_thinking_base(tmp_path / "thinking")})


async def test_a_batch_says_how_much_of_its_output_was_reasoning(
    engine: StubEngine, working: Working, submitter: Submitter
) -> None:
    """Its engine says every prompt again, four tokens of it."""
    lines = [text_line("thinks", "Hm<think>"), text_line("does not", "Hi</think>")]
    async with working():
        batch = await submitter.submit(lines, TEXT)
        done = await submitter.ended(batch["id"])
    assert done["status"] == "completed", done
    assert done["usage"]["output_tokens"] == 8
    assert done["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
