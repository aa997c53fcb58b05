"""A real Prometheus on a free port: scrapes every second, answers queries.

Knows nothing of what it scrapes. Invariant: it has ended, and its data are gone, when the block is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from app.launcher.ports import LOOPBACK, free_port
from tests.builders.waiting import wait_until
from tests.chart.patience import START_S, STOP_S
from tests.chart.rendering import TOOLS
from tests.chart.tooling import need

SCRAPE_INTERVAL_S = 1


class Prometheus:
    """targets: process -> port. Labels are those that the operator's monitors would give."""

    def __init__(self, folder: Path, targets: Mapping[str, int]) -> None:
        self._folder = folder
        self._targets = targets
        self._port = free_port()

    def __enter__(self) -> Self:
        need("prometheus")
        self._folder.mkdir()
        config = self._folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(_config(self._targets)))
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    TOOLS / "bin" / "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={LOOPBACK}:{self._port}",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, timeout_s=START_S)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(STOP_S)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an instant query gives. Fails where the query is wrong."""
        answer = self._get("/api/v1/query", {"query": expression})
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def metadata(self) -> set[str]:
        """Names of all that was scraped, as they are queried."""
        return set(self._get("/api/v1/label/__name__/values", {})["data"])

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            return httpx.get(f"{self._url}/-/ready", trust_env=False).is_success
        except httpx.TransportError:
            return False

    @property
    def _url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def _get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        response = httpx.get(f"{self._url}{path}", params=dict(query), trust_env=False, timeout=30)
        body: dict[str, Any] = response.json()
        return body


def _config(targets: Mapping[str, int]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": f"{SCRAPE_INTERVAL_S}s"},
        "scrape_configs": [
            {
                "job_name": process,
                "static_configs": [
                    {
                        "targets": [f"{LOOPBACK}:{port}"],
                        "labels": {"namespace": "tenfold", "pod": f"tenfold-{process}-0"},
                    }
                ],
            }
            for process, port in targets.items()
        ],
    }
