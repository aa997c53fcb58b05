"""One id finds what every process said of a request, and nobody said what it was about."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.builders.operator import ADMIN_KEY, OPERATOR
from tests.builders.waiting import wait_until
from tests.chart.observability.conftest import VALKEY_PASSWORD
from tests.chart.observability.installation import PROMPT, Installation
from tests.chart.patience import START_S


def events(installation: Installation, process: str) -> list[dict[str, Any]]:
    text = installation.logs[process].read_text()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_every_line_of_every_process_is_an_event_with_its_process(
    installation: Installation,
) -> None:
    for process, path in installation.logs.items():
        lines = path.read_text().splitlines()
        assert lines, process
        for line in lines:
            event = json.loads(line)
            assert event["process"] == process and {"event", "level", "timestamp"} <= event.keys()


def test_a_request_is_found_by_its_id_in_the_log_and_over_rest(
    installation: Installation,
) -> None:
    response = installation.chat("acme")
    request_id = response.headers["x-request-id"]

    def said() -> list[dict[str, Any]]:
        return [
            event
            for event in events(installation, "api")
            if event.get("request_id") == request_id and event["event"] == "http_request"
        ]

    wait_until(lambda: bool(said()), timeout_s=START_S)  # it is said after the answer has gone out
    (line,) = said()
    assert line["status"] == 200 and line["actor"].startswith("key_")
    for name in (request_id, response.json()["id"]):
        path = f"{installation.admin_url}/admin/v1/explain/{name}"
        explained = httpx.get(path, headers=OPERATOR, trust_env=False).raise_for_status().json()
        assert explained["id"] == request_id


def test_a_client_that_left_is_one_story_over_processes(installation: Installation) -> None:
    installation.leave_early("globex")

    def aborted() -> list[dict[str, Any]]:
        return [
            event
            for event in events(installation, "api")
            if event["event"] == "request_aborted" and "sequence_id" in event
        ]

    wait_until(lambda: bool(aborted()), timeout_s=START_S)
    story = aborted()[-1]["request_id"]
    assert story.startswith("req_")
    wait_until(
        lambda: any(
            event["event"] == "http_request" and event.get("request_id") == story
            for event in events(installation, "api")
        ),
        timeout_s=START_S,
    )


def test_no_log_holds_a_prompt_a_key_or_a_password(installation: Installation) -> None:
    installation.chat("acme", "bot")
    installation.chat("limited")
    httpx.post(
        f"{installation.url}/v1/chat/completions",
        json={"model": 7, "messages": PROMPT},
        headers={"authorization": f"Bearer {installation.keys['acme']}"},
        trust_env=False,
    )
    text = installation.log_text()
    secrets = [PROMPT, "canary", ADMIN_KEY, VALKEY_PASSWORD, "pepper-of-the-tests"]
    for secret in (*secrets, *installation.keys.values()):
        assert secret not in text
    assert "http_request" in text  # control: there is a log to be searched
