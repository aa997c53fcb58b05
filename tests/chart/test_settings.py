"""Every setting of every process is a value of the chart, or is listed here with why it is none."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.settings import Settings, WorkerSettings
from tests.chart.rendering import (
    HelmError,
    Object,
    containers,
    environment,
    named,
    pods,
    render,
)
from tests.chart.variables import become, engine_command, known_variables

PROCESSES = ("api", "worker", "engine", "migrate")
OF_WORKERS = "nothing that the API does"
NOT_VALUES: Mapping[str, Mapping[str, str]] = {
    "api": {
        "TENFOLD_ADAPTER_CACHE": "a folder of the data folder, which is the pod's scratch",
        "TENFOLD_API_ID": "names one life of one process: each makes its own",
        "TENFOLD_API_LOST_AFTER_S": OF_WORKERS,
        "TENFOLD_BATCH_CONCURRENCY": OF_WORKERS,
        "TENFOLD_GOLDEN_TIMEOUT_S": OF_WORKERS,
        "TENFOLD_HEALTH_HOST": "its probes ask at the tenants' port",
        "TENFOLD_HEALTH_PORT": "its probes ask at the tenants' port",
        "TENFOLD_IMPORT_CA_FILE": OF_WORKERS,
        "TENFOLD_IMPORT_CREDENTIALS": OF_WORKERS,
        "TENFOLD_IMPORT_HUB": OF_WORKERS,
        "TENFOLD_IMPORT_NETWORKS": OF_WORKERS,
        "TENFOLD_IMPORT_TIMEOUT_S": OF_WORKERS,
        "TENFOLD_MAX_BATCHES": OF_WORKERS,
        "TENFOLD_SWEEP_INTERVAL_S": OF_WORKERS,
        "TENFOLD_USAGE_EXPORT_TOKEN": OF_WORKERS,
        "TENFOLD_USAGE_EXPORT_URL": OF_WORKERS,
    },
    "worker": {
        "TENFOLD_ADAPTER_CACHE": "a folder of the data folder, which is the pod's scratch",
        "TENFOLD_API_LOST_AFTER_S": "what tests of failover hold; nothing of a cluster changes it",
        "TENFOLD_SWEEP_INTERVAL_S": "what tests of failover hold; nothing of a cluster changes it",
    },
    "engine": {
        "TENFOLD_DEBUG_POISON_PAGES": "for tests: it costs a write of every page",
        "TENFOLD_ENGINE_ID": "names one life of one process: each makes its own",
    },
    "migrate": {},
}
EVERYTHING: Object = {
    "adapterStore": {"url": "s3://bucket/adapters", "cacheBytes": 1 << 30},
    "adapters": {
        "retentionDays": 30,
        "knownBases": ["acme/one", "acme/two"],
        "maxOverrideBytes": 0,
        "goldenTimeoutSeconds": 600,
    },
    "imports": {
        "allow": ["hf://acme", "https://models.example.com"],
        "networks": ["10.1.0.0/16", "10.2.0.0/16"],
        "caSecret": "import-ca",
        "hub": "https://hub.example.com",
        "timeoutSeconds": 60,
        "credentials": {"existingSecret": "import-tokens"},
    },
    "files": {"retentionDays": 7, "maxFileBytes": 1 << 20, "maxTenantBytes": 1 << 40},
    "usageExport": {"url": "https://usage.example.com/events", "existingSecret": "usage"},
    "api": {"settings": {"queueTimeoutSeconds": 900, "dependencyTimeoutSeconds": 0.5}},
    "engine": {
        "settings": {
            "dtype": "bfloat16",
            "poolBytes": 1 << 33,
            "cpuPoolBytes": 1 << 30,
            "gpuMemoryUtilization": 0.8,
            "prefixProtectedShare": 0,
            "sharedPrefixes": "/etc/tenfold/prefixes.json",
            "certifiedOnly": False,
            "hostBytes": 1 << 34,
            "maxNumSeqs": 64,
            "maxNumBatchedTokens": 256,
            "threads": 4,
        }
    },
    "tracing": {"endpoint": "http://collector.tracing:4318"},
}
# What the chart says otherwise than a process by itself, because it runs in a pod.
OF_PODS = {
    Settings: {
        *("host", "data_dir", "file_store", "envelope_keys", "admin_key", "api_id", "model_id"),
        *("drain_delay_s", "drain_s"),
    },
    WorkerSettings: {
        *("data_dir", "file_store", "envelope_keys", "model_id", "health_host", "health_port"),
    },
}
SECRETS = {
    "TENFOLD_DATABASE_URL": "postgresql+asyncpg://tenfold_app:secret@db/tenfold",
    "TENFOLD_REDIS_URL": "redis://redis/0",
    "TENFOLD_IMPORT_CREDENTIALS": "hub=token-of-the-hub, mirror=token-of-the-mirror",
}
SECRET = "0123456789abcdef" * 3


def told(process: str, objects: list[Object]) -> dict[str, str]:
    """What the one container of a process is told, with something in the place of secrets."""
    (found,) = (
        environment(container)
        for _, _, pod in pods(objects)
        for container in containers(pod)
        if container["name"] == process
    )
    return {
        name: value if isinstance(value, str) else SECRETS.get(name, SECRET)
        for name, value in found.items()
    }


@pytest.mark.parametrize("process", PROCESSES)
def test_every_setting_is_a_value_or_has_a_reason_to_be_none(process: str) -> None:
    given = set(told(process, render("prod", values=EVERYTHING)))
    if process == "migrate":  # a password is set where the chart brings the database
        given |= set(told(process, without_workers("dev-cpu")))
    missing = known_variables(process) - given
    assert missing == NOT_VALUES[process].keys()


def without_workers(preset: str) -> list[Object]:
    """Whose migrations are an init container of the API alone."""
    return render(preset, values={"worker": {"enabled": False}})


def test_control_a_setting_that_the_chart_does_not_say_is_noticed() -> None:
    given = set(told("api", render("prod")))
    assert {"TENFOLD_ADAPTER_STORE_URL", "TENFOLD_MAX_OVERRIDE_BYTES"} <= (
        known_variables("api") - given - NOT_VALUES["api"].keys()
    )


def test_api_and_workers_take_what_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render("prod", values=EVERYTHING)
    become(told("api", objects), monkeypatch)
    api = Settings()
    become(told("worker", objects), monkeypatch)
    worker = WorkerSettings()
    for each in (api, worker):
        assert each.adapter_store == "s3://bucket/adapters"
        assert each.adapter_cache_bytes == 1 << 30
        assert (each.adapter_retention_days, each.max_override_bytes) == (30, 0)
        assert each.other_bases == {"acme/one", "acme/two"}
        assert each.import_allow == "hf://acme,https://models.example.com"
        assert each.file_retention_days == 7
    assert (api.queue_timeout_s, api.dependency_timeout_s) == (900.0, 0.5)
    assert (api.max_file_bytes, api.max_tenant_file_bytes) == (1 << 20, 1 << 40)
    assert api.import_tokens == {} and worker.import_tokens == {
        "hub": "token-of-the-hub",
        "mirror": "token-of-the-mirror",
    }
    assert worker.import_networks == "10.1.0.0/16,10.2.0.0/16"
    assert (worker.import_hub, worker.import_timeout_s) == ("https://hub.example.com", 60.0)
    assert worker.golden_timeout_s == 600.0
    assert str(worker.usage_export_url) == "https://usage.example.com/events"
    assert worker.usage_export_token is not None


def test_engines_take_what_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    become(told("engine", render("prod", values=EVERYTHING)), monkeypatch)
    given = engine_command().make_context("engine", []).params
    settings = EVERYTHING["engine"]["settings"]
    for name, setting in (
        ("pool_bytes", "poolBytes"),
        ("prefix_protected_share", "prefixProtectedShare"),
        ("certified_only", "certifiedOnly"),
        ("max_num_seqs", "maxNumSeqs"),
    ):
        assert given[name] == settings[setting]
    assert str(given["shared_prefixes"]) == settings["sharedPrefixes"]
    assert (given["adapter_store"], given["adapter_cache_bytes"]) == (
        "s3://bucket/adapters",
        1 << 30,
    )


@pytest.mark.parametrize(("process", "kind"), [("api", Settings), ("worker", WorkerSettings)])
def test_defaults_of_the_chart_are_those_of_the_processes(
    process: str, kind: type[WorkerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one of the two pages that say them would be wrong."""
    given = told(process, render("single-gpu"))
    become(given, monkeypatch)
    of_chart = kind()
    required = {each.upper() for each in kind.model_fields if kind.model_fields[each].is_required()}
    required |= {"ADAPTER_STORE"}
    become(
        {name: value for name, value in given.items() if name.removeprefix("TENFOLD_") in required},
        monkeypatch,
    )
    bare = kind()
    fields = kind.model_fields
    differing = {name for name in fields if getattr(of_chart, name) != getattr(bare, name)}
    assert differing == OF_PODS[kind]


def test_a_ca_of_imports_is_mounted_where_workers_look_for_it() -> None:
    pod = named(render("prod", values=EVERYTHING), "Deployment", "-worker")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    path = environment(container)["TENFOLD_IMPORT_CA_FILE"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "import-ca")
    assert path == f"{mount['mountPath']}/ca.crt" and mount["readOnly"] is True
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes["import-ca"]["secret"] == {"secretName": "import-ca"}


def test_tokens_of_imports_and_of_the_export_are_the_workers_alone() -> None:
    own = {"TENFOLD_IMPORT_CREDENTIALS", "TENFOLD_USAGE_EXPORT_TOKEN"}
    for name, _, pod in pods(render("prod", values=EVERYTHING)):
        for container in containers(pod):
            found = own & environment(container).keys()
            assert found == (own if container["name"] == "worker" else set()), name


@pytest.mark.parametrize(
    ("values", "ports"),
    [
        ({}, {"api": set(), "worker": {443}, "engine-llama-8b": set()}),
        ({"imports": {"allow": []}}, {"api": set(), "worker": set(), "engine-llama-8b": set()}),
        (
            {"adapterStore": {"url": "s3://b/p"}, "networkPolicy": {"storePorts": [9000]}},
            {"api": {9000}, "worker": {443, 9000}, "engine-llama-8b": {9000}},
        ),
    ],
    ids=["imports", "no imports", "a bucket"],
)
def test_only_workers_reach_where_adapters_are_imported_from_and_all_the_bucket(
    values: Object, ports: Mapping[str, set[int]]
) -> None:
    objects = render("prod", values=values)
    for component, wanted in ports.items():
        policy = named(objects, "NetworkPolicy", component)
        open_ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
        assert open_ports - {53, 5432, 6379} == wanted, component


def test_private_networks_of_imports_are_open_to_workers() -> None:
    policy = named(render("prod", values=EVERYTHING), "NetworkPolicy", "-worker")
    blocks = {
        peer["ipBlock"]["cidr"]
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
        if "ipBlock" in peer
    }
    assert {"10.1.0.0/16", "10.2.0.0/16"} <= blocks


@pytest.mark.parametrize(
    "values",
    [
        {"adapters": {"retentionDays": -1}},
        {"adapters": {"knownBases": ["a,b"]}},
        {"imports": {"allow": "hf://*"}},
        {"imports": {"hub": "huggingface.co"}},
        {"imports": {"credentials": {"hub": "a-token-in-the-clear"}}},
        {"usageExport": {"url": "ftp://usage"}},
        {"files": {"retentionDays": 0}},
        {"api": {"settings": {"queueTimeoutSeconds": 0}}},
        {"engine": {"settings": {"prefixProtectedShare": 2}}},
    ],
)
def test_schema_refuses(values: Object) -> None:
    with pytest.raises(HelmError, match=r"values don.t meet the specifications"):
        render("prod", values=values)
