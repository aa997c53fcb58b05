"""What the objects say of each other: policies, hooks, secrets, budgets, scalers."""

from __future__ import annotations

import pytest

from tests.chart.rendering import (
    PRESETS,
    HelmError,
    Object,
    containers,
    environment,
    matches,
    named,
    of_kind,
    pods,
    render,
)

HOOK = "helm.sh/hook"
METADATA_SERVICE = "169.254.0.0/16"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_pod_is_selected_by_a_policy_of_both_directions(preset: str) -> None:
    objects = render(preset)
    for name, metadata, _ in pods(objects):
        policies = [
            policy
            for policy in of_kind(objects, "NetworkPolicy")
            if matches(policy["spec"]["podSelector"], metadata["labels"])
        ]
        assert len(policies) == 1, name
        assert policies[0]["spec"]["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize("preset", PRESETS)
def test_no_policy_reaches_the_metadata_service(preset: str) -> None:
    for policy in of_kind(render(preset), "NetworkPolicy"):
        for rule in policy["spec"]["egress"]:
            assert rule.get("to"), policy["metadata"]["name"]  # without one, everything is allowed
            for peer in rule["to"]:
                block = peer.get("ipBlock")
                if block and block["cidr"] == "0.0.0.0/0":
                    assert METADATA_SERVICE in block["except"]


def test_engine_reaches_no_database() -> None:
    policy = named(render("prod"), "NetworkPolicy", "engine-llama-8b")
    ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert ports == {53, 6379}
    pod = named(render("prod"), "Deployment", "engine-llama-8b")["spec"]["template"]["spec"]
    variables = environment(pod["containers"][0])
    assert not any("DATABASE" in name or "PEPPER" in name or "ADMIN" in name for name in variables)


def test_engine_is_called_by_nobody_but_prometheus() -> None:
    policy = named(render("prod"), "NetworkPolicy", "engine-llama-8b")
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [8080]
    assert rule["from"][0]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "monitoring"
    }


@pytest.mark.parametrize("preset", PRESETS)
def test_admin_port_is_not_open_to_anybody(preset: str) -> None:
    policy = named(render(preset), "NetworkPolicy", "-api")
    rules = {rule["ports"][0]["port"]: rule for rule in policy["spec"]["ingress"]}
    assert rules[8001]["from"] and rules.keys() == {8000, 8001}


def test_admin_port_is_behind_no_ingress() -> None:
    values = {"httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]}}
    objects = render("prod", values=values)
    (ingress,) = of_kind(objects, "Ingress")
    backends = [path["backend"]["service"] for path in ingress["spec"]["rules"][0]["http"]["paths"]]
    assert backends == [{"name": "tf-tenfold-api", "port": {"name": "http"}}]
    (route,) = of_kind(objects, "HTTPRoute")
    assert [each["name"] for each in route["spec"]["rules"][0]["backendRefs"]] == ["tf-tenfold-api"]
    service = named(objects, "Service", "-api")
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]


def test_streams_pass_the_ingress_unbuffered() -> None:
    (ingress,) = of_kind(render("prod"), "Ingress")
    found = {
        name.rpartition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()
    }
    assert found["proxy-buffering"] == "off" and int(found["proxy-read-timeout"]) >= 600
    assert int(found["proxy-body-size"].removesuffix("m")) * 1024 * 1024 >= 268_435_456


@pytest.mark.parametrize("preset", PRESETS)
def test_hook_names_nothing_that_the_release_makes_later(preset: str) -> None:
    """Secrets, claims, maps and accounts of a pre-install hook exist before the release."""
    objects = render(preset)
    later = {
        (each["kind"], each["metadata"]["name"])
        for each in objects
        if HOOK not in each["metadata"].get("annotations", {})
    }
    hooks = [
        each
        for each in objects
        if "pre-install" in each["metadata"].get("annotations", {}).get(HOOK, "")
    ]
    for _, _, pod in pods(hooks):
        assert not (references(pod) & later)
    assert bool(list(pods(hooks))) == (preset != "dev-cpu")


def test_control_a_hook_that_names_a_later_secret_is_noticed() -> None:
    (_, _, pod) = next(iter(pods(of_kind(render("prod"), "Job"))))
    assert references(pod) & {("Secret", "tenfold-database")}


def references(pod: Object) -> set[tuple[str, str]]:
    """(kind, name) of what a pod needs before it can start."""
    found = {("ServiceAccount", pod.get("serviceAccountName", "default"))}
    for volume in pod["volumes"]:
        if "secret" in volume:
            found.add(("Secret", volume["secret"]["secretName"]))
        if "configMap" in volume:
            found.add(("ConfigMap", volume["configMap"]["name"]))
        if "persistentVolumeClaim" in volume:
            found.add(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]))
    for container in containers(pod):
        for value in environment(container).values():
            if isinstance(value, dict) and "secretKeyRef" in value:
                found.add(("Secret", value["secretKeyRef"]["name"]))
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_everything_a_pod_names_exists(preset: str) -> None:
    """Whatever starts with the release's name is made by the release."""
    objects = render(preset)
    made = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for name, _, pod in pods(objects):
        missing = {each for each in references(pod) if each[1].startswith("tf-tenfold")} - made
        assert not missing, name


def test_migrations_run_before_pods_only_where_the_database_is_there_before() -> None:
    def init_containers(objects: list[Object]) -> list[str]:
        pod = named(objects, "Deployment", "-api")["spec"]["template"]["spec"]
        return [each["name"] for each in pod.get("initContainers", [])]

    hooked, bundled = render("prod"), render("dev-cpu")
    manual = render("prod", values={"migrations": {"mode": "manual"}})
    assert len(of_kind(hooked, "Job")) == 1 and "migrate" not in init_containers(hooked)
    assert of_kind(bundled, "Job") == [] and "migrate" in init_containers(bundled)
    assert of_kind(manual, "Job") == [] and "migrate" not in init_containers(manual)


def test_migration_job_has_guard_rails() -> None:
    (job,) = of_kind(render("prod"), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"
    spec = job["spec"]
    assert (
        spec["backoffLimit"] <= 3
        and spec["activeDeadlineSeconds"]
        and spec["ttlSecondsAfterFinished"]
    )
    only = environment(spec["template"]["spec"]["containers"][0])
    assert not {"TENFOLD_ADMIN_KEY", "TENFOLD_KEY_PEPPER", "TENFOLD_REDIS_URL"} & only.keys()


def test_only_migrations_have_the_owners_url() -> None:
    for preset in PRESETS:
        for name, _, pod in pods(render(preset)):
            for container in containers(pod):
                has_owner = "TENFOLD_OWNER_DATABASE_URL" in environment(container)
                assert has_owner == (container["name"] == "migrate"), name


def test_no_secret_is_in_a_pod_or_a_map() -> None:
    objects = render("dev-cpu")
    (secret,) = of_kind(objects, "Secret")
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert len(set(secret["data"].values())) == len(secret["data"]) == 8
    text = str([each for each in objects if each["kind"] != "Secret"])
    assert not any(value in text for value in secret["data"].values())


def test_nothing_is_generated_where_everything_is_given() -> None:
    assert of_kind(render("prod"), "Secret") == []


def test_external_database_needs_a_secret() -> None:
    with pytest.raises(HelmError, match=r"database\.existingSecret is required"):
        render("prod", values={"database": {"existingSecret": ""}})


def test_tls_to_postgres_is_verified() -> None:
    for component in ("-api", "-worker"):
        pod = named(render("prod"), "Deployment", component)["spec"]["template"]["spec"]
        variables = environment(pod["containers"][0])
        assert variables["PGSSLMODE"] == "verify-full"
        mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        assert variables["PGSSLROOTCERT"].startswith(tuple(mounts))


def test_database_url_may_come_in_parts() -> None:
    parts = {"host": "db.example", "name": "x"}
    objects = render("single-gpu", values={"database": {"parts": parts}})
    pod = named(objects, "Deployment", "-api")["spec"]["template"]["spec"]
    variables = environment(pod["containers"][0])
    url = "postgresql+asyncpg://tenfold_app:$(DATABASE_PASSWORD)@db.example:5432/x"
    assert variables["TENFOLD_DATABASE_URL"] == url
    names = [each["name"] for each in pod["containers"][0]["env"]]  # expansion looks backwards only
    assert names.index("DATABASE_PASSWORD") < names.index("TENFOLD_DATABASE_URL")


def test_workers_have_a_database_role_of_their_own() -> None:
    def url_of(component: str, preset: str, **database: object) -> object:
        values = {"database": database} if database else {}
        pod = named(render(preset, values=values), "Deployment", component)["spec"]["template"]
        return environment(pod["spec"]["containers"][0])["TENFOLD_DATABASE_URL"]

    assert "//tenfold_worker:" in str(url_of("-worker", "dev-cpu"))
    assert "//tenfold_app:" in str(url_of("-api", "dev-cpu"))
    assert url_of("-worker", "prod") == url_of("-api", "prod"), "unless its URL is given"
    given = url_of("-worker", "prod", workerUrlKey="worker-url")
    assert given != url_of("-api", "prod", workerUrlKey="worker-url")
    bundled = render("dev-cpu")
    told = {
        name
        for _, _, pod in pods(bundled)
        for container in containers(pod)
        for name in environment(container)
        if container["name"] == "migrate"
    }
    assert "TENFOLD_WORKER_PASSWORD" in told


def test_budget_never_blocks_the_only_replica() -> None:
    assert of_kind(render("single-gpu"), "PodDisruptionBudget") == []
    budgets = of_kind(render("prod"), "PodDisruptionBudget")
    assert {each["metadata"]["name"].rpartition("-")[2] for each in budgets} == {
        "api",
        "worker",
        "8b",
    }
    forced = render("single-gpu", values={"engine": {"pdb": {"force": True}}})
    assert len(of_kind(forced, "PodDisruptionBudget")) == 1


def test_replicas_belong_to_the_scaler_where_there_is_one() -> None:
    objects = render("prod")
    assert "replicas" not in named(objects, "Deployment", "engine-llama-8b")["spec"]
    assert "replicas" not in named(objects, "Deployment", "-api")["spec"]
    assert named(objects, "Deployment", "-worker")["spec"]["replicas"] == 2


def test_engines_are_scaled_by_what_waits_and_the_api_says_it() -> None:
    (scaled,) = of_kind(render("prod"), "ScaledObject")
    triggers = scaled["spec"]["triggers"]
    assert {each["type"] for each in triggers} == {"metrics-api"}
    assert all("-admin.tenfold.svc:8001/internal/" in each["metadata"]["url"] for each in triggers)
    hpa = render("prod", values={"engine": {"autoscaling": {"kind": "hpa"}}})
    metrics = named(hpa, "HorizontalPodAutoscaler", "engine-llama-8b")["spec"]["metrics"]
    assert {each["type"] for each in metrics} == {"External"}  # never CPU


def test_scale_to_zero_needs_keda() -> None:
    scaling = {"kind": "hpa", "minReplicas": 0}
    with pytest.raises(HelmError, match="needs kind keda"):
        render("prod", values={"engine": {"autoscaling": scaling}})


@pytest.mark.parametrize(
    "values",
    [
        {"api": {"replicaz": 1}},
        {"api": {"replicas": "two"}},
        {"api": {"image": {"tag": "latest"}}},
        {"engine": {"models": [{"name": "m"}]}},
        {"engine": {"models": [{"name": "m", "source": {"hub": "a/b", "existingClaim": "c"}}]}},
        {"engine": {"models": [{"name": "m", "source": {"existingClaim": "c", "path": "../x"}}]}},
        {"engine": {"settings": {"dtype": "float16"}}},
        {"engine": {"gpu": {"count": 0}}},
        {"engine": {"autoscaling": {"kind": "cpu"}}},
        {"api": {"autoscaling": {"kind": "keda"}}},
        {"migrations": {"mode": "never"}},
        {"database": {"sslMode": "yes"}},
        {"networkPolicy": {"enable": False}},
        {"unknown": {}},
        {"worker": {"maxBatches": 0}},
        {"worker": {"batchConcurrency": "16"}},
    ],
)
def test_schema_refuses(values: Object) -> None:
    with pytest.raises(HelmError, match=r"values don.t meet the specifications|latest names no"):
        render("single-gpu", values=values)


def test_workers_are_told_how_many_batches_they_run_and_how_many_lines_of_each() -> None:
    values = {"worker": {"maxBatches": 3, "batchConcurrency": 40}}
    told = []
    for given in ({}, values):
        worker = named(render("prod", values=given), "Deployment", "-worker")
        (container,) = worker["spec"]["template"]["spec"]["containers"]
        variables = environment(container)
        told.append((variables["TENFOLD_MAX_BATCHES"], variables["TENFOLD_BATCH_CONCURRENCY"]))
    assert told == [("8", "16"), ("3", "40")]
