"""The api image, built here without a registry, and pods of it, run here without a cluster.

Knows nothing of what is in the image. Invariant: everything lies in the folder of the tools; what
was started is removed.
"""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from tests.chart.rendering import CHECKOUT, TOOLS, Object
from tests.chart.tooling import need_containers
from tools.chart_tools import base_image

BASE = "localhost/python-base:bookworm"
IMAGE = "localhost/tenfold/api:0.1.0"
CA = Path("/etc/ssl/certs/ca-certificates.crt")
STORAGE = ["--root", str(TOOLS / "containers"), "--runroot", "/run/tenfold-chart"]
STORAGE += ["--storage-driver", "overlay"]
CONFIGURATION = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
"""


def buildah(*arguments: str) -> str:
    command = ["buildah", *STORAGE, *arguments]
    return subprocess.run(
        command, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def podman(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`podman` with runc and without systemd, which neither CI nor a container has."""
    path = TOOLS / "containers.conf"
    path.write_text(CONFIGURATION)
    done = subprocess.run(
        ["env", f"CONTAINERS_CONF={path}", "podman", *STORAGE, *arguments],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def build_api_image() -> None:
    """Build `IMAGE` from the checkout, on the base of the tools; layers that are there are kept."""
    need_containers()
    if BASE not in buildah("images", "--format", "{{.Name}}:{{.Tag}}"):
        container = buildah("from", "scratch")
        buildah("add", container, str(base_image(TOOLS)), "/")
        buildah("commit", "--rm", container, BASE)
    isolation = ["--isolation", "chroot", "--network", "host", "--format", "docker", "--layers"]
    secret = ["--secret", f"id=ca,src={CA}"] if CA.is_file() else []
    recipe = ["-f", "deploy/api.Dockerfile", "-t", IMAGE, "--build-arg", f"BASE={BASE}"]
    buildah("bud", *isolation, *secret, *recipe, ".")


def local_pod(
    deployment: Object, variables: Mapping[str, str], folders: Mapping[str, Path]
) -> dict[str, Any]:
    """The pod of a rendered Deployment, as it can run here: on this machine's network, with
    `folders` in the place of claims by the volume's name, and with some variables of its own."""
    pod = deepcopy(deployment["spec"]["template"]["spec"])
    pod.pop("initContainers", None)
    pod["hostNetwork"] = True
    for container in pod["containers"]:
        container["image"] = IMAGE
        for unused in ("startupProbe", "livenessProbe", "readinessProbe", "lifecycle"):
            container.pop(unused, None)  # the kubelet's work; the test asks in its stead
        container.pop("ports")  # on the machine's network nothing is mapped
        given = [each for each in container["env"] if each["name"] not in variables]
        own = [{"name": name, "value": value} for name, value in variables.items()]
        container["env"] = given + own
    for volume in pod["volumes"]:
        name = volume["name"]
        volume.clear()
        volume |= {"name": name, "hostPath": {"path": str(folders[name]), "type": "Directory"}}
    name = deployment["metadata"]["name"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}


@contextmanager
def secrets(values: Mapping[str, Mapping[str, str]], folder: Path) -> Iterator[None]:
    """Secrets by name for the length of the block.

    As podman 4.3 keeps them for pods: those that `play kube` makes itself it cannot read.
    """
    try:
        for name, entries in values.items():
            encoded = {key: b64encode(value.encode()).decode() for key, value in entries.items()}
            (folder / name).write_text(json.dumps(encoded))
            podman("secret", "rm", name, check=False)  # of a run that was killed
            podman("secret", "create", name, str(folder / name))
        yield
    finally:
        podman("secret", "rm", *values, check=False)


@contextmanager
def playing(objects: list[dict[str, Any]], path: Path) -> Iterator[None]:
    """`podman play kube` for the length of the block."""
    path.write_text(yaml.safe_dump_all(objects))
    names = [each["metadata"]["name"] for each in objects]
    podman("pod", "rm", "--force", "--ignore", *names)  # of a run that was killed
    try:
        podman("play", "kube", str(path))
        yield
    finally:
        podman("pod", "rm", "--force", "--ignore", *names, check=False)
