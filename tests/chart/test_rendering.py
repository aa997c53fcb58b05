"""Every preset renders, lints and packages, with both Helms, for every Kubernetes we name."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

import tools.chart_schema
from tests.chart.rendering import (
    CHART,
    CHECKOUT,
    HELMS,
    KUBERNETES,
    PRESETS,
    TOOLS,
    helm,
    of_kind,
    render,
    render_text,
)

FURTHER = {
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}
    ]
}


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("preset", PRESETS)
def test_strict_lint_finds_nothing(preset: str, version: str) -> None:
    helm(
        "lint", "--strict", str(CHART), "-f", str(CHART / f"values-{preset}.yaml"), version=version
    )


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("preset", PRESETS)
def test_objects_are_what_kubernetes_takes(
    preset: str, kubernetes: str, version: str, tmp_path: Path
) -> None:
    path = tmp_path / "objects.yaml"
    path.write_text(render_text(preset, "{}", version, kubernetes))
    validate(path, kubernetes)


def validate(path: Path, kubernetes: str) -> None:
    tool = TOOLS / "validate" / "bin" / "kubernetes-validate"
    subprocess.run([tool, "--strict", "--no-warn", "-k", kubernetes, path], check=True)


def test_control_an_unknown_field_and_a_wrong_type_are_noticed(tmp_path: Path) -> None:
    text = render_text("dev-cpu", "{}", "helm3", KUBERNETES[1])
    for wrong in (("replicas: 1", "replicas: one"), ("automountService", "autoMountService")):
        path = tmp_path / "wrong.yaml"
        path.write_text(text.replace(*wrong))
        with pytest.raises(subprocess.CalledProcessError):
            validate(path, KUBERNETES[1])


def test_both_helms_render_the_same() -> None:
    for preset in PRESETS:
        if preset == "dev-cpu":  # whose passwords are made anew each time
            continue
        assert render(preset, version="helm3") == render(preset, version="helm4")


def test_upgrade_renders_what_an_installation_does() -> None:
    assert render("prod", is_upgrade=True) == render("prod")


def test_package_contains_schema_presets_and_notes(tmp_path: Path) -> None:
    for version in HELMS:
        helm("package", str(CHART), "-d", str(tmp_path), version=version)
        (archive,) = tmp_path.glob("*.tgz")
        with tarfile.open(archive) as package:
            names = {each.removeprefix("tenfold/") for each in package.getnames()}
        assert names >= {"values.schema.json", "templates/NOTES.txt", "README.md"}
        assert names >= {f"values-{preset}.yaml" for preset in PRESETS}
        helm(
            "lint", "--strict", str(archive), "-f", str(CHART / "values-prod.yaml"), version=version
        )
        archive.unlink()


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (CHECKOUT / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project


def test_schema_and_table_are_made_from_the_values() -> None:
    for path, text in tools.chart_schema.made_files(CHART).items():
        assert path.read_text() == text, f"run python -m tools.chart_schema {CHART}"


def test_further_objects_are_templates() -> None:
    objects = of_kind(render("prod", values=FURTHER), "ConfigMap")
    assert "tf-more" in {each["metadata"]["name"] for each in objects}
