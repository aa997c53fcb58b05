"""`tenfold adapter check`: the whole check where an adapter was trained, without any server.

As its users start it where two processes have a part in the answer; what the second one does alone
is tried in this process, which has torch loaded already.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from click.testing import Result
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from engine.adapter_check import check as check_all
from lora.digest import adapter_digest, hash_file
from lora.store import CHAT_TEMPLATE_FILE, CONFIG_FILE, EVAL_FILE, WEIGHTS_FILE
from lora.values import MAX_MAGNITUDE
from tests.builders.chat_templates import SMOLLM2
from tests.builders.peft_models import make_adapter


@pytest.fixture(scope="module")
def trained(tiny_base_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "adapter"
    make_adapter(tiny_base_folder, folder, seed=1, r=4, use_dora=True, target_modules="all-linear")
    (folder / CHAT_TEMPLATE_FILE).write_text(SMOLLM2)
    return folder


def started(folder: Path, base: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.cli", "adapter", "check", str(folder)]
    command += ["--base", str(base), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def check(folder: Path, base: Path, *options: str) -> Result:
    command = typer.Typer()
    command.command()(check_all)
    return CliRunner().invoke(command, [str(folder), "--base", str(base), *options])


def copied(trained: Path, folder: Path) -> Path:
    folder.mkdir()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        (folder / name).write_bytes((trained / name).read_bytes())
    return folder


def test_a_good_adapter_passes_with_all_of_its_modules_measured(
    trained: Path, tiny_base_folder: Path
) -> None:
    done = started(trained, tiny_base_folder, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["status"] == "accepted"
    files = (CONFIG_FILE, WEIGHTS_FILE, CHAT_TEMPLATE_FILE)
    assert report["digest"] == adapter_digest(hash_file(trained / name) for name in files)
    modules = report["figures"]["modules"]
    assert len(modules) == 7 * 3
    assert max(each["error"] for each in modules) < 1e-3
    assert min(report["figures"]["golden"]) > 0


def test_in_words(trained: Path, tiny_base_folder: Path) -> None:
    done = check(trained, tiny_base_folder)
    assert done.exit_code == 0, done.output
    assert "21 modules: largest error" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("accepted sha256:")


def test_a_warning_refuses_it_where_that_is_asked_for(
    trained: Path, tiny_base_folder: Path
) -> None:
    """Its configuration names a base by a folder. Without the word it passes: see above."""
    done = started(trained, tiny_base_folder, "--strict")
    assert done.returncode == 1, done.stderr
    assert "error base_model_unverified:" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("rejected sha256:")


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        ("number", "tensor_nonfinite"),
        ("drowning", "canary_nonfinite"),
        ("missing", "adapter_empty"),
    ],
)
def test_a_bad_one_fails_with_the_rule_that_it_breaks(
    trained: Path, tiny_base_folder: Path, tmp_path: Path, damage: str, rule: str
) -> None:
    folder = copied(trained, tmp_path / "adapter")
    weights, config = folder / WEIGHTS_FILE, folder / CONFIG_FILE
    if damage == "missing":
        weights.unlink()
    elif damage == "drowning":
        changes = {"use_dora": False, "lora_alpha": 40_000}
        config.write_text(json.dumps(json.loads(config.read_text()) | changes))
        kept = {name: each for name, each in load_file(weights).items() if "vector" not in name}
        drowned = {name for name in kept if ".mlp." in name}
        save_file(
            {
                name: np.full_like(each, MAX_MAGNITUDE) if name in drowned else each
                for name, each in kept.items()
            },
            weights,
        )
    else:
        tensors = load_file(weights)
        first = next(values for name, values in tensors.items() if "lora_A" in name)
        first[0, 0] = np.nan
        save_file(tensors, weights)
    done = check(folder, tiny_base_folder, "--json")
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert report["status"] == "rejected"
    rules = {each["rule"] for each in report["checks"]}
    assert rule in rules and not rules & {"chat_template_invalid", "eval_invalid"}


def test_findings_of_both_processes_are_in_one_report(
    trained: Path, tiny_base_folder: Path, tmp_path: Path
) -> None:
    folder = copied(trained, tmp_path / "adapter")
    config = folder / CONFIG_FILE
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_qalora": True}))
    (folder / CHAT_TEMPLATE_FILE).write_text("{% for %}")
    (folder / EVAL_FILE).write_text('{"prompt": "?"}')
    done = started(folder, tiny_base_folder, "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["status"] == "rejected"
    rules = {each["rule"] for each in report["checks"]}
    assert rules >= {"variant_unsupported", "chat_template_invalid", "eval_invalid"}


def test_a_base_that_is_none_is_said_to_be_so(trained: Path, tmp_path: Path) -> None:
    done = check(trained, tmp_path)
    assert done.exit_code == 2 and "config.json" in done.stderr
