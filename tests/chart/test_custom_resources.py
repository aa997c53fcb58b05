"""Custom resources are what operators take: KEDA, Gateway API, Prometheus, External Secrets.

There is no cluster whose CRDs could be asked: the schemas are those that operators' own Go types
give, as published for JavaScript.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import PRESETS, TOOLS, Object, render
from tests.chart.tooling import need

GROUPS = (
    "keda.sh",
    "gateway.networking.k8s.io",
    "monitoring.coreos.com",
    "external-secrets.io",
)
EVERYTHING = {
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["x.example"]},
    "externalSecrets": {
        "enabled": True,
        "secretStoreRef": {"name": "vault", "kind": "ClusterSecretStore"},
        "data": [{"secretKey": "admin-key", "remoteRef": {"key": "tenfold", "property": "admin"}}],
    },
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
    },
}
# Of each kind, a place and what must not be there.
WRONG: dict[str, tuple[Sequence[str | int], object]] = {
    "ScaledObject": (("spec", "minReplicaCount"), "two"),
    "TriggerAuthentication": (("spec", "secretTargetRef", 0, "key"), 5),
    "HTTPRoute": (("spec", "rules", 0, "backendRefs", 0, "port"), "http"),
    "ServiceMonitor": (("spec", "endpoints", 0, "port"), 8080),
    "PodMonitor": (("spec", "podMetricsEndpoints", 0, "path"), 5),
    "PrometheusRule": (("spec", "groups", 0, "rules", 0, "labels"), "page"),
    "ExternalSecret": (("spec", "data", 0, "secretKey"), 5),
}


def resources(preset: str) -> list[Object]:
    objects = render(preset, values=EVERYTHING)
    return [each for each in objects if each["apiVersion"].startswith(GROUPS)]


def test_every_kind_that_the_chart_can_render_is_tried() -> None:
    assert {each["kind"] for each in resources("prod")} == WRONG.keys()


@pytest.mark.parametrize("preset", PRESETS)
def test_custom_resources_are_what_their_operators_take(preset: str) -> None:
    assert refusals(resources(preset)) == []


def test_control_a_wrong_value_and_a_misspelt_field_of_each_kind_are_noticed() -> None:
    broken = list(damaged(resources("prod")))
    said = refusals(broken)
    for object in broken:
        start = f"{object['kind']} {object['metadata']['name']}: "
        assert any(each.startswith(start) for each in said), start
    assert len(broken) == 2 * len(WRONG)


def damaged(objects: Sequence[Object]) -> Iterator[dict[str, Any]]:
    """Of each kind two, named for what is wrong with them."""
    first = {each["kind"]: each for each in reversed(objects)}
    for kind, ((*way, name), value) in WRONG.items():
        for what in ("wrong", "misspelt"):
            copy: dict[str, Any] = deepcopy(dict(first[kind]))
            copy["metadata"]["name"] = f"{kind.lower()}-{what}"
            place: Any = copy
            for step in way:
                place = place[step]
            assert name in place
            place[name if what == "wrong" else f"{name}s"] = value
            yield copy


def refusals(objects: Sequence[Object]) -> list[str]:
    """What the operators' own schemas say against them."""
    need("crds")
    script = TOOLS / "crds" / "validate.mjs"
    script.write_text((Path(__file__).parent / "validate.mjs").read_text())
    done = subprocess.run(
        ["node", script], input=json.dumps(objects), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found
