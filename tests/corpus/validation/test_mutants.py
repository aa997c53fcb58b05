"""Thousands of damaged adapters through the real API, worker and an engine: each is refused by name
or served with PEFT's logits; nothing breaks, and nothing is left behind.

TEST_FAULTS=few: 200; soak: 20,000 in ten rounds, each with a registry of its own; else 2,000.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.settings import Settings
from engine.config import EngineConfig
from lora.config_fields import NO_BEARING
from lora.store import CONFIG_FILE, WEIGHTS_FILE
from tests.builders.mutants import Files, mutant
from tests.builders.operator import OPERATOR
from tests.builders.parity import Parity
from tests.builders.peft_models import TIED_FORMS, make_adapter
from tests.builders.running_engine import RunningEngine
from tests.builders.tiny_base import CONFIG
from tests.corpus.conftest import Verdict
from tests.fixtures.processes import ApiProcess

NUM_ROUNDS = 10 if os.environ.get("TEST_FAULTS") == "soak" else 1
NUM_MUTANTS = 200 if os.environ.get("TEST_FAULTS") == "few" else 2_000
NUM_CLIENTS = 4
VERSIONS = "/tenants/acme/adapters/bot/versions"
CODE = re.compile(r"[a-z][a-z0-9_]+")
# Of the largest logit: numbers may be large here, and float32 has seven digits.
MAX_RELATIVE_ERROR = 1e-3
ORIGINALS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "target_modules": ["q_proj", "v_proj"]},
    "rslora": {"r": 4, "use_rslora": True, "target_modules": ["o_proj", "up_proj"]},
    "dora": {"r": 2, "use_dora": True, "target_modules": ["k_proj", "down_proj"]},
    "norms": {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["norm"]},
    **{name: TIED_FORMS[name] for name in ("kept_tie_saved", "kept_tie_adapted")},
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant."""

    seed: int
    act: str
    status: int
    code: str | None
    version: str | None


@pytest.fixture(scope="session")
def originals(tiny_base_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Files]:
    root = tmp_path_factory.mktemp("originals")
    found = []
    for seed, (name, config) in enumerate(ORIGINALS.items()):
        folder = make_adapter(tiny_base_folder, root / name, seed=seed, spread=0.05, **config)
        found.append({each: (folder / each).read_bytes() for each in (CONFIG_FILE, WEIGHTS_FILE)})
    return found


def send(admin_url: str, originals: list[Files], seeds: range) -> list[Outcome]:
    """Upload these mutants one after the other."""
    outcomes = []
    url = f"{admin_url}/admin/v1"
    with httpx.Client(base_url=url, headers=OPERATOR, timeout=120) as admin:
        for seed in seeds:
            act, files = mutant(originals[seed % len(originals)], seed)
            parts = {name: (name, content) for name, content in files.items()}
            response = admin.post(VERSIONS, files=parts)
            body = response.json()
            code = None if response.is_success else body["error"]["code"]
            version = body["version"] if response.is_success else None
            outcomes.append(Outcome(seed, act, response.status_code, code, version))
    return outcomes


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("first", range(0, NUM_ROUNDS * NUM_MUTANTS, NUM_MUTANTS))
def test_every_mutant_is_refused_by_name_or_served_as_peft_does(
    engine: RunningEngine,
    api_process: ApiProcess,
    worker_process: Path,
    settings: Settings,
    originals: list[Files],
    tmp_path: Path,
    verdict: Verdict,
    first: int,
) -> None:
    """first: the seed of the first of them."""
    url = f"{api_process.admin_url}/admin/v1"
    pids = _pids()
    with httpx.Client(base_url=url, headers=OPERATOR, timeout=120) as admin:
        admin.post("/tenants", json={"slug": "acme"}).raise_for_status()
        unlimited = {"limits": {"uploads_per_day": None}}
        admin.put("/tenants/acme/limits", json=unlimited).raise_for_status()
        admin.post("/tenants/acme/adapters", json={"name": "bot"}).raise_for_status()
        seeds = range(first, first + NUM_MUTANTS)
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            runs = [
                pool.submit(send, api_process.admin_url, originals, seeds[number::NUM_CLIENTS])
                for number in range(NUM_CLIENTS)
            ]
            outcomes = [outcome for run in runs for outcome in run.result()]
        broken = [each for each in outcomes if not _is_answer(each)]
        for each in outcomes:
            if each.version is None:
                verdict("refused as expected", _is_answer(each))
        assert broken == []
        versions = _settled(admin)

    assert _pids() == pids, "a process ended, or another began"
    assert list((settings.data_dir / "uploads").iterdir()) == []
    assert list((Path(settings.adapter_store) / ".staging").iterdir()) == []
    active = {name: each for name, each in versions.items() if each["state"] == "active"}
    rejected = [each for each in versions.values() if each["state"] == "rejected"]
    assert all(
        any(check["severity"] == "error" for check in each["report"]["checks"]) for each in rejected
    )
    for _ in rejected:
        verdict("refused as expected", True)
    wrong = _wrong(outcomes, active, originals, settings.model, tmp_path, verdict)
    assert wrong == {}
    assert active, "no mutant was good: nothing was compared"


def _wrong(
    outcomes: list[Outcome],
    active: dict[str, dict[str, Any]],
    originals: list[Files],
    base: Path,
    folder: Path,
    verdict: Verdict,
) -> dict[int, float]:
    """Seeds of the mutants that are served otherwise than by PEFT, and how far off they are:
    infinitely where PEFT cannot load them."""
    config = EngineConfig(pool_bytes=1 << 24)
    parity = Parity(folder / "parity", base, config, CONFIG["vocab_size"], keeps_models=False)
    wrong = {}
    for name in active:
        seed = next(each.seed for each in outcomes if each.version == name)
        _, files = mutant(originals[seed % len(originals)], seed)
        own = folder / "mutants" / str(seed)
        own.mkdir(parents=True)
        for each, content in files.items():
            (own / each).write_bytes(content)
        parity.add(str(seed), own)
        original = originals[seed % len(originals)]
        changed = _changed_fields(files, original)
        if changed and changed <= NO_BEARING:
            # PEFT may fail to read a field that has no bearing here: the original is the oracle.
            parity.folders[str(seed)] = _with_config(own, original)
        try:
            error = parity.errors([str(seed)], max_tokens=2)[str(seed)]
        except (AttributeError, TypeError, KeyError, ValueError):  # PEFT refuses what is served
            error = float("inf")
        largest = float(parity.harness.logits(str(seed)).abs().max())
        is_right = error <= MAX_RELATIVE_ERROR * max(1.0, largest)
        verdict("accepted and PEFT-equal", is_right)
        if not is_right:
            wrong[seed] = error / max(1.0, largest)
    parity.close()
    return wrong


def _changed_fields(files: Files, original: Files) -> set[str]:
    """The fields of the configuration that are not as they were: added, gone, or another value."""
    ours, theirs = (json.loads(each[CONFIG_FILE]) for each in (files, original))
    return {
        name
        for name in ours.keys() | theirs.keys()
        if (name in ours, json.dumps(ours.get(name)))
        != (name in theirs, json.dumps(theirs.get(name)))
    }


def _with_config(folder: Path, original: Files) -> Path:
    """The same weights under the configuration that was not changed."""
    other = folder.with_name(f"{folder.name}-original")
    other.mkdir()
    (other / WEIGHTS_FILE).write_bytes((folder / WEIGHTS_FILE).read_bytes())
    (other / CONFIG_FILE).write_bytes(original[CONFIG_FILE])
    return other


def _is_answer(outcome: Outcome) -> bool:
    if outcome.version is not None:
        return outcome.status == 201
    return 400 <= outcome.status < 500 and bool(CODE.fullmatch(outcome.code or ""))


def _settled(admin: httpx.Client) -> dict[str, dict[str, Any]]:
    """All versions by name, once none is being checked any more."""
    deadline = time.monotonic() + 3600
    while True:
        versions: dict[str, dict[str, Any]] = {}
        after: str | None = None
        while True:
            query = {"limit": 100} | ({} if after is None else {"after": after})
            page = admin.get(VERSIONS, params=query).raise_for_status().json()
            versions |= {each["version"]: each for each in page["data"]}
            if not page["has_more"]:
                break
            after = page["data"][-1]["id"]
        states = Counter(each["state"] for each in versions.values())
        if states["verifying"] == 0 or time.monotonic() > deadline:
            assert states["verifying"] == 0, states
            return versions
        time.sleep(0.5)


def _pids() -> set[int]:
    """Of the API and worker: children of this process that live longer than a moment."""
    return {
        child.pid
        for child in psutil.Process().children()
        if {"app.serve", "app.worker"} & set(child.cmdline())
    }
