"""What the chart tells processes is what they read, and their images are those that we make."""

from __future__ import annotations

import pytest

from tests.chart.rendering import CHECKOUT, PRESETS, containers, environment, named, pods, render
from tests.chart.variables import OURS, known_variables

PROCESSES = ("api", "worker", "engine", "migrate")


@pytest.mark.parametrize("preset", PRESETS)
def test_no_variable_is_one_that_nobody_reads(preset: str) -> None:
    """A process takes no offence at one: it goes on as if it had been told nothing."""
    found = set()
    for name, _, pod in pods(render(preset)):
        for container in containers(pod):
            process = str(container["name"])
            given = {each for each in environment(container) if each.startswith(OURS)}
            if process in PROCESSES:
                assert given <= known_variables(process), name
                found.add(process)
    assert found == set(PROCESSES)


def test_control_a_misspelt_variable_is_noticed() -> None:
    values = {"api": {"extraEnv": [{"name": "TENFOLD_KEY_PEPER", "value": "x"}]}}
    pod = named(render("prod", values=values), "Deployment", "-api")["spec"]["template"]["spec"]
    given = {each for each in environment(pod["containers"][0]) if each.startswith(OURS)}
    assert given - known_variables("api") == {"TENFOLD_KEY_PEPER"}


def test_every_image_of_ours_is_one_that_is_made() -> None:
    """The worker's is the api's, as are those of migrations and of the smoke test."""
    images = {
        str(container["image"])
        for preset in PRESETS
        for _, _, pod in pods(render(preset))
        for container in containers(pod)
    }
    ours = {each for each in images if each.startswith("tenfold/")}
    recipes = {path.stem for path in (CHECKOUT / "deploy").glob("*.Dockerfile")}
    assert {each.removeprefix("tenfold/").partition(":")[0] for each in ours} == recipes
    assert len(ours) == len(recipes), "each of one version"
