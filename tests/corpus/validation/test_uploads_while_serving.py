"""64 uploads at once, good and bad, while others are served: their tokens are what they were.

TEST_FAULTS=few: 16.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from app.settings import Settings
from lora.base_spec import BaseSpec
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.adapter_files import adapter_config, adapter_files, adapter_tensors
from tests.builders.operator import OPERATOR
from tests.builders.running_engine import RunningEngine
from tests.builders.tiny_base import MODEL_ID
from tests.fixtures.processes import ApiProcess

NUM_UPLOADS = 16 if os.environ.get("TEST_FAULTS") == "few" else 64
NUM_STREAMS = 6
MAX_RETRIES = 60
Files = dict[str, bytes]


@pytest.fixture
def engine(tmp_path: Path, redis_url: str, tiny_base_folder: Path) -> Any:
    """Bits of an answer do not depend on what else runs."""
    with RunningEngine(
        tmp_path, redis_url, model=tiny_base_folder, batch_invariant=True
    ) as running:
        yield running


def uploads(base: BaseSpec) -> list[tuple[Files, int, str | None]]:
    """Files, and what they are answered: (status, code)."""
    nan = adapter_tensors(base, seed=1)
    next(iter(nan.values()))[0, 0] = np.nan
    good = adapter_files(base, seed=0)
    bad: list[tuple[Files, int, str | None]] = [
        (good | {WEIGHTS_FILE: b"PK\x03\x04archive/data.pkl"}, 415, "pickle_not_allowed"),
        (good | {CONFIG_FILE: adapter_config(use_qalora=True)}, 422, "variant_unsupported"),
        (good | {WEIGHTS_FILE: good[WEIGHTS_FILE][:-1]}, 400, "safetensors_length_mismatch"),
        (good | {CONFIG_FILE: b"{" * 5000}, 400, "config_json_invalid"),
        ({WEIGHTS_FILE: good[WEIGHTS_FILE]}, 422, "config_missing"),
        ({CONFIG_FILE: adapter_config(), WEIGHTS_FILE: save(nan)}, 201, None),  # rejected later
    ]
    return [
        bad[number // 2 % len(bad)]
        if number % 2
        else (adapter_files(base, seed=100 + number), 201, None)
        for number in range(NUM_UPLOADS)
    ]


@pytest.mark.timeout(1200)
def test_other_streams_tokens_do_not_change(
    engine: RunningEngine,
    api_process: ApiProcess,
    worker_process: Path,
    settings: Settings,
    tiny_base: BaseSpec,
) -> None:
    url = f"{api_process.admin_url}/admin/v1"
    with httpx.Client(base_url=url, headers=OPERATOR, timeout=300) as admin:
        for slug in ("acme", "loader"):
            admin.post("/tenants", json={"slug": slug}).raise_for_status()
            admin.post(f"/tenants/{slug}/adapters", json={"name": "bot"}).raise_for_status()
        _upload(admin, "acme", adapter_files(tiny_base, seed=1), wait=60)
        key = admin.post("/tenants/acme/keys", json={}).raise_for_status().json()["secret"]
        client = httpx.Client(
            base_url=api_process.url, headers={"authorization": f"Bearer {key}"}, timeout=300
        )
        solo = [_answer(client, number) for number in range(NUM_STREAMS)]
        assert len(set(solo)) > 1
        done, answers = Event(), Counter[bool]()

        def stream(number: int) -> None:
            while not done.is_set():
                answers[_answer(client, number) == solo[number]] += 1

        with ThreadPoolExecutor(NUM_UPLOADS + NUM_STREAMS) as pool:
            streams = [pool.submit(stream, number) for number in range(NUM_STREAMS)]
            sent = [
                (pool.submit(_upload, admin, "loader", files), status, code)
                for files, status, code in uploads(tiny_base)
            ]
            found = [(each.result(), (status, code)) for each, status, code in sent]
            done.set()
            for each in streams:
                each.result()
        client.close()
        assert [answer for answer, expected in found if answer != expected] == []
    assert answers[True] >= NUM_STREAMS and answers[False] == 0, answers


def _patiently(send: Callable[[], httpx.Response]) -> httpx.Response:
    """As SDKs do: what is answered 503 is asked for again after a while."""
    for _ in range(MAX_RETRIES):
        response = send()
        if response.status_code != 503:
            break
        time.sleep(float(response.headers["retry-after"]))
    return response


def _upload(
    admin: httpx.Client, tenant: str, files: Files, wait: float = 0
) -> tuple[int, str | None]:
    parts = {name: (name, content) for name, content in files.items()}
    path = f"/tenants/{tenant}/adapters/bot/versions"
    response = _patiently(lambda: admin.post(path, files=parts, params={"wait": wait}))
    return response.status_code, None if response.is_success else response.json()["error"]["code"]


def _answer(client: httpx.Client, number: int) -> str:
    """What one stream's prompt is answered, greedy: every other one by the adapter."""
    body = {
        "model": "bot" if number % 2 else MODEL_ID,
        "prompt": f"Stream {number} says",
        "max_tokens": 24,
        "temperature": 0,
    }
    response = _patiently(lambda: client.post("/v1/completions", json=body)).raise_for_status()
    return str(response.json()["choices"][0]["text"])
