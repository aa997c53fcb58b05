"""The images' recipes and the compose file: linted, locked, hardened as the chart's pods are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.chart.rendering import CHECKOUT, TOOLS
from tools.image_requirements import ENGINE_ONLY, LOCK, api_requirements, name_of

DEPLOY = CHECKOUT / "deploy"
RECIPES = sorted(DEPLOY.glob("*.Dockerfile"))
COMPOSE = DEPLOY / "compose.yaml"
VALIDATE_COMPOSE = """
import sys, yaml
from compose_spec.models import ComposeSpecification
ComposeSpecification.model_validate(yaml.safe_load(open(sys.argv[1])))
"""
OURS = ("migrate", "fetch", "api", "worker", "engine")


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    tool = TOOLS / "validate" / "bin" / "hadolint"
    return subprocess.run([tool, path], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_clean(recipe: Path) -> None:
    done = lint(recipe)
    assert done.returncode == 0, done.stdout


def test_control_a_careless_recipe_is_noticed(tmp_path: Path) -> None:
    recipe = tmp_path / "Dockerfile"
    recipe.write_text("FROM debian\nRUN apt-get install curl\n")
    assert lint(recipe).returncode != 0


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_image_runs_as_nobody_in_particular(recipe: Path) -> None:
    text = recipe.read_text()
    assert "\nUSER 10001:10001\n" in text and "\nHEALTHCHECK " in text
    assert text.count("\nFROM ") == 2 and "sbom.cdx.json" in text


def test_engine_image_has_the_compiler_that_triton_calls() -> None:
    """In the image that is kept, not in the one that built it; and a cache that it may write."""
    kept = (DEPLOY / "engine.Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert "install -y --no-install-recommends gcc libc6-dev" in kept
    assert "TRITON_CACHE_DIR=/tmp/" in kept


def test_api_image_is_locked_and_without_torch() -> None:
    lock = LOCK.read_text()
    locked = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock, re.MULTILINE))
    assert {name_of(each) for each in api_requirements()} <= locked.keys()
    assert not ENGINE_ONLY & locked.keys()
    assert len(re.findall(r"--hash=sha256:", lock)) >= len(locked)
    text = (CHECKOUT / "constraints.txt").read_text()
    pinned = set(re.findall(r"^(\S+)==([^\s;]+)", text, re.MULTILINE))  # some by Python's version
    names = {name for name, _ in pinned}
    differing = {each for each in locked.items() if each[0] in names and each not in pinned}
    assert not differing, "run python -m tools.image_requirements"


def test_compose_file_is_what_the_specification_takes() -> None:
    python = TOOLS / "validate" / "bin" / "python"
    subprocess.run([python, "-c", VALIDATE_COMPOSE, COMPOSE], check=True)


def test_compose_services_are_hardened_and_the_admin_port_is_local() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name in OURS:
        service = services[name]
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert not service["image"].endswith(":latest")
    assert services["api"]["ports"] == ["8000:8000", "127.0.0.1:8001:8001"]
    assert "TENFOLD_DATABASE_URL" not in services["engine"]["environment"]
    for name in ("api", "engine"):
        drain_s = float(services[name]["environment"]["TENFOLD_DRAIN_S"])
        assert float(services[name]["stop_grace_period"].removesuffix("s")) > drain_s


def test_compose_example_names_every_variable() -> None:
    wanted = set(re.findall(r"\$\{(\w+)", COMPOSE.read_text()))
    given = set(re.findall(r"^(\w+)=", (DEPLOY / "compose.env.example").read_text(), re.M))
    assert wanted == given
