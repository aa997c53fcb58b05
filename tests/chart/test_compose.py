"""The compose file would start: read as Compose reads it, and by the processes that it tells of it.

Nothing is started here: there is no Docker. What is linted without that is in `test_deploy`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from app.cli import app
from app.settings import Settings, WorkerSettings
from tests.chart.rendering import CHECKOUT
from tests.chart.variables import OURS, become, engine_command, known_variables

COMPOSE = CHECKOUT / "deploy" / "compose.yaml"
PROCESSES = ("api", "worker", "engine", "migrate")
SECRET = "0123456789abcdef" * 3  # as `openssl rand -hex 24` gives
# https://docs.docker.com/reference/compose-file/interpolation/
VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<word>[^}]*))?\}")

Services = Mapping[str, Mapping[str, Any]]


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Raises ValueError for a variable that must be there and is not, or is empty."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        given = variables.get(found["name"], "")
        if not given and found["kind"] == "?":
            raise ValueError(f"{found['name']}: {found['word']}")
        return given or found["word"] or ""

    return VARIABLE.sub(value, text)


def filled_example() -> dict[str, str]:
    """The example of what Compose is told, with a secret wherever it leaves one open."""
    text = (COMPOSE.parent / "compose.env.example").read_text()
    return {name: value or SECRET for name, value in re.findall(r"^(\w+)=(.*)$", text, re.M)}


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(interpolated(COMPOSE.read_text(), filled_example()))
    return found


@pytest.fixture(scope="module")
def services(composed: dict[str, Any]) -> Services:
    found: Services = composed["services"]
    return found


def told(service: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    become({name: str(value) for name, value in service["environment"].items()}, monkeypatch)


def test_api_and_worker_take_what_they_are_told(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(services["api"], monkeypatch)
    api = Settings()
    told(services["worker"], monkeypatch)
    worker = WorkerSettings()
    assert (api.file_store, api.adapter_store) == (worker.file_store, worker.adapter_store)
    assert api.envelope_keys == worker.envelope_keys and api.envelope_keys is not None
    assert api.queue_secret == worker.queue_secret and api.host == "0.0.0.0"
    assert worker.health_port == 8080, "the image's own health check asks there"


def test_engine_takes_what_it_is_told(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    told(services["engine"], monkeypatch)
    context = engine_command().make_context("engine", [])
    assert context.params["model"] == Path("/models/base")
    assert context.params["drain_s"] == 20


@pytest.mark.parametrize("name", PROCESSES)
def test_no_variable_is_one_that_nobody_reads(name: str, services: Services) -> None:
    given = {each for each in services[name]["environment"] if each.startswith(OURS)}
    assert given and given <= known_variables(name)


def test_control_a_missing_secret_and_a_misspelt_one_are_noticed(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = filled_example() | {"TENFOLD_KEY_PEPPER": ""}
    with pytest.raises(ValueError, match="TENFOLD_KEY_PEPPER"):
        interpolated(COMPOSE.read_text(), without)
    assert "TENFOLD_KEY_PEPER" not in known_variables("api")
    told(services["engine"], monkeypatch)
    with pytest.raises(ValueError, match="key_pepper"):
        Settings()


def test_every_command_is_one_that_the_image_has(services: Services) -> None:
    root = typer.main.get_command(app)
    for name in (*PROCESSES, "fetch"):
        command, *arguments = services[name]["command"]
        root.commands[command].make_context(command, arguments)


def test_every_image_of_ours_is_made_by_a_recipe_that_is_linted(services: Services) -> None:
    """The worker's is the api's, which is built and run in `test_container`."""
    made = {
        service["image"]: Path(service["build"]["dockerfile"])
        for service in services.values()
        if "build" in service
    }
    assert {path.name for path in made.values()} == {
        path.name for path in COMPOSE.parent.glob("*.Dockerfile")
    }
    ours = {each["image"] for each in services.values() if each["image"].startswith("tenfold/")}
    assert ours == made.keys()
    assert services["worker"]["image"] == services["api"]["image"]


def test_whatever_a_service_names_is_there(composed: dict[str, Any]) -> None:
    services, order = composed["services"], TopologicalSorter[str]()
    for name, service in services.items():
        order.add(name)
        for before, how in service.get("depends_on", {}).items():
            order.add(name, before)
            other = services[before]
            if how["condition"] == "service_healthy":
                assert "healthcheck" in other, before
            elif how["condition"] == "service_completed_successfully":
                assert other.get("restart", "no") == "no", f"{before} would start again for ever"
        mounted = {each.split(":")[0] for each in service.get("volumes", [])}
        assert mounted <= composed["volumes"].keys(), name
        configs = {each["source"] for each in service.get("configs", [])}
        assert configs <= composed["configs"].keys(), name
    first = next(iter(order.static_order()))  # raises CycleError
    assert first in services
