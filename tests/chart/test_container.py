"""The api image, built here, runs the chart's own pods against real servers and passes smoke."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from app.launcher.ports import LOOPBACK, free_port
from app.settings import Settings
from tests.builders.envelope_keys import ENVELOPE_KEYS
from tests.builders.operator import ADMIN_KEY, OPERATOR
from tests.builders.queue_secret import QUEUE_SECRET
from tests.builders.stub_engine import StubEngine
from tests.builders.waiting import wait_until
from tests.chart.containers import IMAGE, build_api_image, local_pod, playing, podman, secrets
from tests.chart.patience import START_S
from tests.chart.rendering import CHECKOUT, Object, named, render

PATIENCE = {"TENFOLD_DEPENDENCY_TIMEOUT_S": "5", "TENFOLD_MAX_LOOP_LAG_S": "30"}
RECIPE = CHECKOUT / "deploy" / "api.Dockerfile"


@pytest.fixture(scope="module", autouse=True)
def image() -> str:
    build_api_image()
    return IMAGE


def hardened(*options: str) -> list[str]:
    """As the chart runs it: any user, nothing to write to but a scratch."""
    return [
        *("run", "--rm", "--network", "host", "--read-only", "--no-healthcheck"),
        *("--user", "12345:12345", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--tmpfs", "/scratch:mode=1777", "--env", "HOME=/nonexistent", *options, IMAGE),
    ]


def test_image_has_the_command_and_no_torch() -> None:
    assert "Multi-tenant" in podman(*hardened(), "--help").stdout
    script = "import importlib.util as u; print([u.find_spec(n) for n in ('torch', 'pip')])"
    found = podman(*hardened("--entrypoint", "python3"), "-c", script).stdout
    assert found.strip() == "[None, None]"
    bom = podman(*hardened("--entrypoint", "cat"), "/opt/tenfold/sbom.cdx.json").stdout
    assert '"CycloneDX"' in bom and '"fastapi"' in bom


def test_rendered_pods_run_and_pass_the_smoke_test(settings: Settings, tmp_path: Path) -> None:
    objects = render("single-gpu")
    port, admin_port, health_port = free_port(), free_port(), free_port()
    folders = {name: tmp_path / name for name in ("scratch", "adapters")}
    for folder in folders.values():
        folder.mkdir()
        folder.chmod(0o777)
    folders["model"] = settings.model
    model = {"TENFOLD_MODEL": "/models", "TENFOLD_MODEL_ID": "tenfold-test/Tiny-Llama"}
    ports = {
        "TENFOLD_HOST": LOOPBACK,
        "TENFOLD_PORT": str(port),
        "TENFOLD_ADMIN_PORT": str(admin_port),
    }
    health = {"TENFOLD_HEALTH_HOST": LOOPBACK, "TENFOLD_HEALTH_PORT": str(health_port)}
    drain = {"TENFOLD_DRAIN_DELAY_S": "0"}
    given = {
        "tenfold-database": {"database-url": settings.database_url},
        "tenfold-redis": {"redis-url": settings.redis_url},
        "tenfold-keys": {
            "admin-key": ADMIN_KEY,
            "key-pepper": settings.key_pepper.get_secret_value(),
            "queue-secret": QUEUE_SECRET,
            "envelope-keys": ENVELOPE_KEYS,
        },
    }
    api = local_pod(named(objects, "Deployment", "-api"), model | ports | drain | PATIENCE, folders)
    worker = local_pod(named(objects, "Deployment", "-worker"), model | health, folders)
    url, admin_url = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{admin_port}"
    with (
        StubEngine(settings.redis_url),
        secrets(given, tmp_path),
        playing([api, worker], tmp_path / "pods.yaml"),
    ):
        wait_until(lambda: is_ready(f"http://{LOOPBACK}:{health_port}"), timeout_s=START_S)
        wait_until(lambda: is_ready(url), timeout_s=START_S)
        variables = {"TENFOLD_ADMIN_KEY": ADMIN_KEY, "TENFOLD_MODEL": "/models"}
        options = [
            part for name, value in variables.items() for part in ("--env", f"{name}={value}")
        ]
        mount = ["--volume", f"{settings.model}:/models:ro"]
        done = podman(
            *hardened(*options, *mount),
            "smoke",
            "--url",
            url,
            "--admin-url",
            admin_url,
            check=False,
        )
        assert done.returncode == 0, done.stderr + logs_of(api, "api") + logs_of(worker, "worker")

        for pod, process in ((api, "api"), (worker, "worker")):
            podman("exec", f"{pod['metadata']['name']}-{process}", *health_check())

        container = f"{api['metadata']['name']}-api"
        podman("exec", container, "tenfold", "drain", "--url", admin_url)
        status = httpx.get(f"{admin_url}/internal/drain", headers=OPERATOR).json()
        assert status["is_drained"] is True
        assert httpx.get(f"{url}/readyz?engines=optional").status_code == 503


def logs_of(pod: Object, process: str) -> str:
    done = podman("logs", f"{pod['metadata']['name']}-{process}", check=False)
    return f"\n{process}:\n{done.stdout}{done.stderr}"


def health_check() -> list[str]:
    """The image's own, as Docker runs it in a container of either process."""
    found = re.search(r"^HEALTHCHECK .*?CMD (\[.*?\])$", RECIPE.read_text(), re.M | re.S)
    assert found is not None
    command: list[str] = json.loads(found[1])
    return command


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False
