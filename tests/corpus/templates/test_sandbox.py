"""A template can do nothing but make text of messages, within its limits, for its owner alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from app.chat_templates.checking import MAX_TEMPLATE_BYTES, check_template
from app.chat_templates.messages import Answer
from app.chat_templates.sandbox import SandboxBusyError, TemplateSandbox, TemplateSource
from tests.builders.chat_templates import GEMMA, HOSTILE, SPIN, SWITCH
from tests.builders.waiting import until
from tests.corpus.templates.conftest import template_processes

HI = [{"role": "user", "content": "Hello"}]
PLAIN = "{{ bos_token }}{{ messages[0].content }}"
MAX_CHARS = 8192
# (a template, the codes of what is found)
CHECKED: list[tuple[str | bytes, list[str]]] = [
    (PLAIN, []),
    (SWITCH, []),
    (GEMMA, ["chat_template_without_system"]),
    ("{% for %}", ["chat_template_invalid"]),
    ("{{ raise_exception('never') }}", ["chat_template_invalid"]),
    ("{{ unknown.field }}", ["chat_template_invalid"]),
    ("", ["chat_template_invalid"]),
    (
        "{% if messages[0].role == 'system' %}{{ 1 // 0 }}{% endif %}x",
        ["chat_template_invalid"],
    ),
    (SPIN, ["chat_template_invalid"]),
    (b"\xff\xfe", ["chat_template_invalid"]),
    (b" " * (MAX_TEMPLATE_BYTES + 1), ["chat_template_invalid"]),
]


def source(text: str, owner: str = "ten_a") -> TemplateSource:
    return TemplateSource(owner, f"sha of {text[:50]}", text)


async def render(sandbox: TemplateSandbox, text: str, owner: str = "ten_a") -> Answer:
    return await sandbox.render(source(text, owner), HI, {}, MAX_CHARS)


async def test_a_hostile_template_harms_nobody_and_others_are_rendered(
    sandbox: TemplateSandbox,
) -> None:
    before = psutil.Process().memory_info().rss
    for what, (text, problem) in HOSTILE.items():
        answer = await render(sandbox, text)
        assert (answer.text, answer.problem) == (None, problem), what
        assert (await render(sandbox, PLAIN)).text == "<s>Hello", what  # and the control
    assert psutil.Process().memory_info().rss < before + (64 << 20)


def test_what_confines_a_template_forbids_all_but_compiling() -> None:
    code = (
        "import os, socket\n"
        "from app.adapters.confinement import COMPILING, ForbiddenError, confine\n"
        "confine((), memory_bytes=1 << 28, cpu_s=5, deadline_s=5, allowed=COMPILING)\n"
        "print(eval('1 + 1'), flush=True)\n"  # the control
        "for act in (lambda: open('/etc/passwd'), socket.socket, lambda: __import__('tabnanny')):\n"
        "    try:\n"
        "        act()\n"
        "    except (ForbiddenError, PermissionError):\n"
        "        print('no', flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["2", "no", "no", "no"]


async def test_messages_and_variables_reach_a_template_as_they_are(
    sandbox: TemplateSandbox,
) -> None:
    text = "{{ messages | tojson }}{{ variables_of_mine | tojson }}{{ tools }}"
    message = {"role": "user", "content": "\u00e9 삼 \U0001f642 \x00", "n": [1, None, 10**30]}
    variables = {"variables_of_mine": {"a": [True, 0.5]}}
    answer = await sandbox.render(source(text), [message], variables, MAX_CHARS)
    expected = '"content": "\u00e9 삼 \U0001f642 \\u0000", "n": [1, null, ' + str(10**30)
    assert answer.text is not None and expected in answer.text
    assert answer.text.endswith('{"a": [true, 0.5]}None')


async def test_what_no_template_could_read_is_said_so(sandbox: TemplateSandbox) -> None:
    half = await sandbox.render(source("{{ x }}"), HI, {"x": "\ud800"}, MAX_CHARS)
    assert half.text is None and half.problem == "failed"
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    deep = await sandbox.render(source("{{ x }}"), HI, {"x": nested}, MAX_CHARS)
    assert deep.problem == "failed" and "deeply" in deep.message


async def test_a_process_is_kept_for_one_template_of_one_owner(sandbox: TemplateSandbox) -> None:
    for _ in range(3):
        await render(sandbox, PLAIN)
    assert len(template_processes()) == 1
    await render(sandbox, PLAIN, owner="ten_b")
    await render(sandbox, "other")
    assert len(template_processes()) == 3
    await sandbox.close()
    await until(lambda: template_processes() == [])


async def test_no_more_processes_are_kept_than_may_be() -> None:
    sandbox = TemplateSandbox({}, max_idle=1)
    for owner in ("ten_a", "ten_b", "ten_c"):
        await render(sandbox, PLAIN, owner)
    await until(lambda: len(template_processes()) == 1)
    await sandbox.close()


async def test_a_process_that_died_while_it_waited_is_no_fault_of_the_template(
    sandbox: TemplateSandbox,
) -> None:
    assert (await render(sandbox, PLAIN)).text == "<s>Hello"
    for process in template_processes():
        process.kill()
    assert (await render(sandbox, PLAIN)).text == "<s>Hello"
    for zygote in psutil.Process().children():
        if "chat_templates" in " ".join(zygote.cmdline()):
            zygote.kill()
            zygote.wait()
    assert (await render(sandbox, "{{ messages[0].content }}!")).text == "Hello!"


async def test_an_owner_whose_template_is_slow_holds_up_itself_alone() -> None:
    sandbox = TemplateSandbox({}, turn_s=0.01)
    await render(sandbox, PLAIN)
    slow = asyncio.create_task(render(sandbox, SPIN))
    await until(lambda: len(template_processes()) == 2)
    with pytest.raises(SandboxBusyError):
        await render(sandbox, PLAIN)
    assert (await render(sandbox, PLAIN, owner="ten_b")).text == "Hello"
    assert (await slow).problem == "time"
    assert (await render(sandbox, PLAIN)).text == "Hello"
    await sandbox.close()


async def test_whoever_asks_no_more_leaves_no_work_behind(sandbox: TemplateSandbox) -> None:
    await render(sandbox, PLAIN)
    slow = asyncio.create_task(render(sandbox, SPIN))
    await until(lambda: len(template_processes()) == 2)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    await until(lambda: len(template_processes()) == 1)
    assert (await render(sandbox, PLAIN)).text == "<s>Hello"


async def test_a_template_is_tried_on_small_conversations(sandbox: TemplateSandbox) -> None:
    for content, codes in CHECKED:
        data = content if isinstance(content, bytes) else content.encode()
        found = await check_template(sandbox, "ten_a", data, MAX_CHARS)
        assert [each.code for each in found] == codes, content[:60]
        assert all(each.message.isprintable() for each in found)


async def test_a_conversation_waits_for_no_thread_that_uploads_hold(
    sandbox: TemplateSandbox,
) -> None:
    held = threading.Event()
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    upload = asyncio.get_running_loop().run_in_executor(None, held.wait, 30)
    try:
        with pytest.raises(TimeoutError):  # the control: whoever needs one of those waits
            async with asyncio.timeout(0.1):
                await asyncio.to_thread(int)
        assert (await render(sandbox, PLAIN)).text == "<s>Hello"
    finally:
        held.set()
        await upload
