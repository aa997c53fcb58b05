"""What holds for every pod of every preset: identity, limits, probes, places, and how it goes."""

from __future__ import annotations

import re

import pytest

from tests.chart.rendering import (
    PRESETS,
    HelmError,
    Object,
    containers,
    environment,
    named,
    of_kind,
    pods,
    render,
)

SERVERS = ("Deployment", "StatefulSet")
ALL = [(preset, pod) for preset in PRESETS for pod in pods(render(preset))]
each_pod = pytest.mark.parametrize(
    "pod", [pod for _, (_, _, pod) in ALL], ids=[f"{preset}:{name}" for preset, (name, _, _) in ALL]
)


@each_pod
def test_pod_is_restricted(pod: Object) -> None:
    """The restricted Pod Security Standard, and a root file system that nobody writes to."""
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True and security["runAsUser"] > 10_000
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        assert name not in pod
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "persistentVolumeClaim", "ephemeral", "secret", "configMap"}
    for container in containers(pod):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["privileged"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


@each_pod
def test_container_says_what_it_needs(pod: Object) -> None:
    for container in containers(pod):
        resources = container["resources"]
        assert {"cpu", "memory", "ephemeral-storage"} <= resources["requests"].keys()
        assert {"memory", "ephemeral-storage"} <= resources["limits"].keys()


@each_pod
def test_image_is_pinned(pod: Object) -> None:
    for container in containers(pod):
        assert re.search(r":v?\d[\w.-]*$|@sha256:[0-9a-f]{64}$", container["image"])


@each_pod
def test_process_writes_only_where_there_is_a_volume(pod: Object) -> None:
    """Homes and caches of every variable that names one lie on a writable mount."""
    for container in containers(pod):
        writable = [
            mount["mountPath"]
            for mount in container["volumeMounts"]
            if not mount.get("readOnly") and mount["name"] in volume_names(pod)
        ]
        for name, value in environment(container).items():
            if name == "HOME" or name.endswith(("_CACHE_DIR", "_CACHE_HOME", "TMPDIR", "HF_HOME")):
                assert str(value).startswith(tuple(writable)), (name, value)
            if name == "TMPDIR":
                assert value in writable, "nobody makes a folder there"


def volume_names(pod: Object) -> set[str]:
    return {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_server_has_three_probes_and_liveness_asks_nobody_else(preset: str) -> None:
    for name, _, pod in pods(render(preset)):
        if not name.startswith(SERVERS):
            continue
        for container in pod["containers"]:
            probes = [container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
            assert all(probe["timeoutSeconds"] >= 3 for probe in probes)
            live = container["livenessProbe"]
            assert live["timeoutSeconds"] >= 5
            assert live.get("httpGet", {"path": "/livez"})["path"] == "/livez"


def test_engine_may_load_for_twenty_minutes() -> None:
    for preset in PRESETS:
        for name, _, pod in pods(render(preset)):
            if "engine" in name:
                startup = pod["containers"][0]["startupProbe"]
                assert startup["httpGet"]["path"] == "/readyz?phase=startup"
                assert startup["periodSeconds"] * startup["failureThreshold"] >= 1200


@pytest.mark.parametrize("preset", PRESETS)
def test_grace_is_longer_than_the_drain(preset: str) -> None:
    objects = render(preset)
    api = named(objects, "Deployment", "-api")["spec"]["template"]["spec"]
    variables = environment(api["containers"][0])
    drain_s = float(variables["TENFOLD_DRAIN_S"]) + float(variables["TENFOLD_DRAIN_DELAY_S"])
    assert api["terminationGracePeriodSeconds"] > drain_s
    assert api["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["tenfold", "drain"]
    for name, _, pod in pods(objects):
        if "engine" in name:
            drain_s = float(environment(pod["containers"][0])["TENFOLD_DRAIN_S"])
            assert pod["terminationGracePeriodSeconds"] > drain_s


@pytest.mark.parametrize(
    "values",
    [
        {"api": {"terminationGracePeriodSeconds": 600}},
        {"engine": {"settings": {"drainSeconds": 50}}},
    ],
)
def test_grace_shorter_than_the_drain_is_refused(values: Object) -> None:
    with pytest.raises(HelmError, match="terminationGracePeriodSeconds must be at least"):
        render("prod", values=values)


def test_new_engine_never_waits_for_the_old_ones_gpu() -> None:
    for preset in PRESETS:
        for each in of_kind(render(preset), "Deployment"):
            if "engine" in each["metadata"]["name"]:
                rolling = each["spec"]["strategy"]["rollingUpdate"]
                assert rolling == {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        ({"resourceName": "nvidia.com/mig-3g.40gb", "count": 1}, {"nvidia.com/mig-3g.40gb": 1}),
        ({"resourceName": "amd.com/gpu", "count": 2}, {"amd.com/gpu": 2}),
        ({"resourceName": ""}, {}),
    ],
)
def test_gpu_is_the_resource_that_is_named(gpu: Object, limits: Object) -> None:
    objects = render("single-gpu", values={"engine": {"gpu": gpu}})
    found = named(objects, "Deployment", "engine-base")["spec"]["template"]["spec"]
    counted = found["containers"][0]["resources"]["limits"]
    assert {name: value for name, value in counted.items() if "/" in name} == limits


def test_gpu_is_a_claim_where_one_is_given() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    gpu = {"resourceName": "", "resourceClaims": claims}
    objects = render("single-gpu", values={"engine": {"gpu": gpu}})
    pod = named(objects, "Deployment", "engine-base")["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == claims
    assert pod["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


def test_large_numbers_are_digits() -> None:
    objects = render("prod", values={"engine": {"settings": {"hostBytes": 68719476736}}})
    pod = named(objects, "Deployment", "engine-llama-8b")["spec"]["template"]["spec"]
    assert environment(pod["containers"][0])["TENFOLD_HOST_BYTES"] == "68719476736"


def test_model_entry_overrides_every_engine_value() -> None:
    models = [{"name": "m", "source": {"hub": "acme/base"}, "replicas": 3, "runtimeClassName": "x"}]
    objects = render("single-gpu", values={"engine": {"models": models}})
    spec = named(objects, "Deployment", "engine-m")["spec"]
    assert spec["replicas"] == 3 and spec["template"]["spec"]["runtimeClassName"] == "x"


def test_two_bases_in_one_release_are_refused() -> None:
    models = [{"name": name, "source": {"hub": f"acme/{name}"}} for name in ("a", "b")]
    with pytest.raises(HelmError, match="one base model a release"):
        render("single-gpu", values={"engine": {"models": models}})


def test_diagnostic_mode_sleeps_without_probes() -> None:
    for name, _, pod in pods(render("prod", values={"diagnosticMode": {"enabled": True}})):
        if name.startswith("Deployment"):
            assert pod["containers"][0]["command"] == ["sleep", "infinity"]
            assert "livenessProbe" not in pod["containers"][0]
