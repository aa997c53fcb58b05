"""A policy scanner of others finds nothing that we do not know and explain."""

from __future__ import annotations

import json
import subprocess
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


@pytest.mark.parametrize("preset", PRESETS)
def test_scanner_finds_nothing_unexplained(preset: str, tmp_path: Path) -> None:
    text = render_text(preset, "{}", "helm3", KUBERNETES[1])
    found = failed_checks(tmp_path, text)
    unexplained = {
        (check, resource)
        for check, resource in found
        if check not in ALLOWED and not (check in PROBELESS and resource.startswith("Pod."))
    }
    assert unexplained == set()


def test_control_a_privileged_container_is_found(tmp_path: Path) -> None:
    text = render_text("prod", "{}", "helm3", KUBERNETES[1])
    broken = text.replace("privileged: false", "privileged: true")
    assert "CKV_K8S_16" in {check for check, _ in failed_checks(tmp_path, broken)}


def failed_checks(folder: Path, text: str) -> set[tuple[str, str]]:
    path = folder / "objects.yaml"
    path.write_text(text)
    command = [TOOLS / "checkov" / "bin" / "checkov", "-f", path, "--framework", "kubernetes"]
    options = ["--compact", "--quiet", "--skip-download", "--soft-fail", "-o", "json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    results = json.loads(done.stdout)["results"]["failed_checks"]
    return {(each["check_id"], each["resource"]) for each in results}
