"""A line of a batch is rendered as the request would be: with the template of its version."""

from __future__ import annotations

from app.context import AppContext
from lora.base_spec import BaseSpec
from lora.store import CHAT_TEMPLATE_FILE
from tests.billing.batches.conftest import Working
from tests.billing.batches.inputs import Submitter, chat_line
from tests.builders.adapter_files import adapter_files
from tests.builders.chat_templates import SWITCH
from tests.builders.operator import Operator
from tests.builders.stub_engine import StubEngine


async def test_a_line_is_rendered_with_the_template_of_its_version(
    operator: Operator,
    submitter: Submitter,
    engine: StubEngine,
    working: Working,
    context: AppContext,
    tiny_base: BaseSpec,
) -> None:
    await operator.new_adapter("acme", "bot")
    files = adapter_files(tiny_base) | {CHAT_TEMPLATE_FILE: SWITCH.encode()}
    await operator.push("acme", "bot", files)
    lines = [chat_line("good", "hello", model="bot"), chat_line("bad", "refuse", model="bot")]
    async with working():
        batch = await submitter.submit(lines)
        done = await submitter.ended(batch["id"])
    errors = await submitter.lines_of(done["error_file_id"])
    error = errors["bad"]["response"]["body"]["error"]
    assert error["code"] == "chat_template_failed" and "I do not like it" in error["message"]
    [request] = engine.requests
    assert context.tokenizer.model.decode(request.prompt_token_ids) == "[hello]"
