"""A policy scanner of others finds nothing that we do not know and explain."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.chart.rendering import KUBERNETES, PRESETS, TOOLS, render_text

# Each with why it is so.
ALLOWED = {
    "CKV_K8S_11": "a CPU limit throttles a process that has work; requests share the node",
    "CKV_K8S_15": "tags are pinned, so that pulling always would only add a registry to each start",
    "CKV_K8S_35": "processes read secrets from their environment, and never print it",
    "CKV_K8S_43": "digests are the operator's: values have a place for them",
}
PROBELESS = {"CKV_K8S_8", "CKV_K8S_9"}  # of pods that run once
CONTROL = "privileged"


Failures = Mapping[str, set[tuple[str, str]]]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    """(check, resource) by preset, and of a broken one: the scanner takes seconds to start."""
    folder = tmp_path_factory.mktemp("objects")
    texts = {preset: render_text(preset, "{}", "helm3", KUBERNETES[1]) for preset in PRESETS}
    texts[CONTROL] = texts["prod"].replace("privileged: false", "privileged: true")
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    command = [TOOLS / "checkov" / "bin" / "checkov", "-d", folder, "--framework", "kubernetes"]
    options = ["--compact", "--quiet", "--skip-download", "--soft-fail", "-o", "json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in texts}
    for each in json.loads(done.stdout)["results"]["failed_checks"]:
        found[Path(each["file_path"]).stem].add((each["check_id"], each["resource"]))
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_scanner_finds_nothing_unexplained(preset: str, failures: Failures) -> None:
    unexplained = {
        (check, resource)
        for check, resource in failures[preset]
        if check not in ALLOWED and not (check in PROBELESS and resource.startswith("Pod."))
    }
    assert unexplained == set()


def test_control_a_privileged_container_is_found(failures: Failures) -> None:
    assert "CKV_K8S_16" in {check for check, _ in failures[CONTROL]}


def test_nothing_is_explained_that_is_not_found(failures: Failures) -> None:
    """Each preset was scanned, and no reason outlives what it is for."""
    assert all(failures[preset] for preset in PRESETS)
    found = {check for preset in PRESETS for check, _ in failures[preset]}
    assert ALLOWED.keys() <= found
