"""The chart as Helm renders it: objects by preset, Helm's version and Kubernetes' version.

Knows nothing of what the objects should be. Invariant: what is rendered once is not rendered again.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).parents[2]
CHART = CHECKOUT / "helm" / "tenfold"
TOOLS = CHECKOUT / "build" / "chart"
HELMS = ("helm3", "helm4")
PRESETS = ("dev-cpu", "single-gpu", "prod")
KUBERNETES = ("1.29.0", "1.33.0", "1.37.0")
NAMESPACE = "tenfold"
RELEASE = "tf"

Object = Mapping[str, Any]


class HelmError(Exception):
    """What Helm said on its standard error."""


def helm(*arguments: str, version: str = "helm3") -> str:
    done = subprocess.run(
        [TOOLS / "bin" / version, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise HelmError(done.stderr)
    return done.stdout


def render(
    preset: str,
    *,
    values: Mapping[str, Any] | None = None,
    version: str = "helm3",
    kubernetes: str = KUBERNETES[1],
    is_upgrade: bool = False,
) -> list[Object]:
    """Objects of a preset, with `values` over it. Raises HelmError."""
    text = render_text(preset, json.dumps(values or {}), version, kubernetes, is_upgrade)
    return [each for each in yaml.safe_load_all(text) if each is not None]


@lru_cache(maxsize=256)
def render_text(
    preset: str, values: str, version: str, kubernetes: str, is_upgrade: bool = False
) -> str:
    """The same as text; `values` is JSON."""
    done = subprocess.run(
        [
            *(TOOLS / "bin" / version, "template", RELEASE, CHART, "--namespace", NAMESPACE),
            *("--values", CHART / f"values-{preset}.yaml", "--values", "-"),
            *("--kube-version", kubernetes),
            *(["--is-upgrade"] if is_upgrade else []),
        ],
        input=values,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise HelmError(done.stderr)
    return done.stdout


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: Iterable[Object], kind: str, end: str) -> Object:
    """The one object of a kind whose name ends so."""
    (found,) = (each for each in of_kind(objects, kind) if each["metadata"]["name"].endswith(end))
    return found


def pods(objects: Iterable[Object]) -> Iterator[tuple[str, Object, Object]]:
    """(kind/name, metadata, spec) of every pod that the objects make."""
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = each["spec"]["template"]
            yield name, template["metadata"], template["spec"]
        elif each["kind"] == "Pod":
            yield name, each["metadata"], each["spec"]


def containers(pod: Object) -> list[Object]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def environment(container: Object) -> dict[str, Any]:
    """Variables by name: a text, or where it comes from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {})
    return all(labels.get(name) == value for name, value in wanted.items())
