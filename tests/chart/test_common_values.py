"""Values that concern every object: names, labels, registries, sources of secrets; the notes."""

from __future__ import annotations

import pytest

from app.internal import ScalingStatus
from tests.chart.rendering import (
    CHART,
    PRESETS,
    Object,
    containers,
    environment,
    helm,
    named,
    of_kind,
    pods,
    render,
)

KEDA = {"engine": {"autoscaling": {"kind": "keda"}}}


@pytest.mark.parametrize("preset", PRESETS)
def test_common_labels_and_annotations_are_on_every_object_and_pod(preset: str) -> None:
    common = {"commonLabels": {"team": "serving"}, "commonAnnotations": {"cost": "gpu"}}
    objects = render(preset, values=common)
    for each in [*(each["metadata"] for each in objects), *(meta for _, meta, _ in pods(objects))]:
        assert each["labels"]["team"] == "serving", each
    for each in objects:
        assert each["metadata"]["annotations"]["cost"] == "gpu", each["metadata"]["name"]


@pytest.mark.parametrize("name", ["nameOverride", "fullnameOverride"])
def test_names_of_objects_follow_the_override(name: str) -> None:
    objects = render("prod", values={name: "renamed"})
    start = "tf-renamed" if name == "nameOverride" else "renamed"
    assert all(each["metadata"]["name"].startswith(start) for each in objects)
    selectors = {
        str(each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"])
        for each in of_kind(objects, "Deployment")
    }
    assert selectors == {"renamed" if name == "nameOverride" else "tenfold"}


@pytest.mark.parametrize("preset", PRESETS)
def test_registry_and_pull_secrets_are_those_of_every_pod(preset: str) -> None:
    values = {
        "global": {"imageRegistry": "registry.test:5000", "imagePullSecrets": [{"name": "pull"}]}
    }
    for name, _, pod in pods(render(preset, values=values)):
        assert pod["imagePullSecrets"] == [{"name": "pull"}], name
        images = [container["image"] for container in containers(pod)]
        assert all(image.startswith("registry.test:5000/") for image in images), images


def test_a_digest_wins_over_a_tag() -> None:
    digest = f"sha256:{'a' * 64}"
    values = {"api": {"image": {"digest": digest, "tag": "1.0"}}}
    pod = named(render("prod", values=values), "Deployment", "-api")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"registry.example.com/tenfold/api@{digest}"


def test_every_secret_comes_from_the_external_store_where_there_is_one() -> None:
    """And nothing is generated; migrations wait for it in a pod's start, as no hook could."""
    names = ("database", "redis", "adminKey", "keyPepper", "queueSecret", "envelopeKeys")
    store = {"name": "vault", "kind": "ClusterSecretStore"}
    data = [{"secretKey": "admin-key", "remoteRef": {"key": "tenfold"}}]
    objects = render(
        "single-gpu",
        values={name: {"existingSecret": ""} for name in names}
        | {"huggingFace": {"existingSecret": ""}}
        | {"externalSecrets": {"enabled": True, "secretStoreRef": store, "data": data}},
    )
    sources = {
        value["secretKeyRef"]["name"]
        for _, _, pod in pods(objects)
        for container in containers(pod)
        for value in environment(container).values()
        if isinstance(value, dict) and "secretKeyRef" in value
    }
    (external,) = of_kind(objects, "ExternalSecret")
    assert sources == {external["spec"]["target"]["name"]}
    assert of_kind(objects, "Secret", "Job") == []


def test_pods_of_a_component_are_spread_over_zones_and_hosts_and_never_wait_for_it() -> None:
    objects = render("prod")
    for component in ("-api", "engine-llama-8b"):
        deployment = named(objects, "Deployment", component)
        pod, own = deployment["spec"]["template"]["spec"], deployment["spec"]["selector"]
        spreads = {each["topologyKey"]: each for each in pod["topologySpreadConstraints"]}
        assert spreads.keys() == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
        for each in spreads.values():
            assert each["whenUnsatisfiable"] == "ScheduleAnyway" and each["labelSelector"] == own
        (apart,) = pod["affinity"]["podAntiAffinity"][
            "preferredDuringSchedulingIgnoredDuringExecution"
        ]
        assert apart["podAffinityTerm"]["labelSelector"] == own


@pytest.mark.parametrize(
    ("cache", "kind"),
    [
        ({"type": "pvc"}, "persistentVolumeClaim"),
        ({"type": "pvc", "existingClaim": "mine"}, "persistentVolumeClaim"),
        ({"type": "ephemeral"}, "ephemeral"),
        ({"type": "emptyDir"}, "emptyDir"),
    ],
)
def test_a_fetched_model_lies_where_it_is_wanted_and_the_engine_only_reads_it(
    cache: Object, kind: str
) -> None:
    objects = render("single-gpu", values={"engine": {"cache": cache}})
    pod = named(objects, "Deployment", "engine-base")["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["model"].keys() == {"name", kind}
    claims = [each["metadata"]["name"] for each in of_kind(objects, "PersistentVolumeClaim")]
    is_made = cache == {"type": "pvc"}
    assert ("tf-tenfold-engine-base-models" in claims) == is_made
    mounts = {
        container["name"]: mount.get("readOnly", False)
        for container in containers(pod)
        for mount in container["volumeMounts"]
        if mount["name"] == "model"
    }
    assert mounts == {"fetch-model": False, "engine": True}


def test_keda_asks_for_what_the_api_answers() -> None:
    (scaled,) = of_kind(render("prod", values=KEDA), "ScaledObject")
    asked = {trigger["metadata"]["valueLocation"] for trigger in scaled["spec"]["triggers"]}
    assert asked == {"queued_tokens", "oldest_wait_s", "wanted"}
    assert asked <= ScalingStatus.model_fields.keys()


def test_the_first_request_starts_the_first_engine() -> None:
    """Scale to zero: whatever waits or is wanted at all brings KEDA to one."""
    none = {"engine": {"autoscaling": {"kind": "keda", "minReplicas": 0}}}
    (scaled,) = of_kind(render("prod", values=none), "ScaledObject")
    assert scaled["spec"]["minReplicaCount"] == 0
    triggers = scaled["spec"]["triggers"]
    assert {each["metadata"]["activationTargetValue"] for each in triggers} == {"0"}


def test_notes_say_how_to_get_the_first_answer() -> None:
    """Of Helm 4: Helm 3 asks a cluster even where nothing is to be installed."""
    preset = str(CHART / "values-single-gpu.yaml")
    said = helm(
        *("install", "tf", str(CHART), "--namespace", "tenfold", "--dry-run=client", "-f", preset),
        version="helm4",
    ).partition("NOTES:")[2]
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in said
    assert "get secret tenfold-keys" in said and "svc/tf-tenfold-admin 8001:8001" in said
