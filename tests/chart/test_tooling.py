"""Tools are fetched through hiccups; what cannot be had is told apart from what failed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.chart.scheduling import place
from tests.chart.tooling import need, tally
from tools.fetching import CannotError, attempt, once

AT_ONCE = (0.0, 0.0)


class Registry:
    """Of one tool; it fails `num_hiccups` times."""

    def __init__(self, num_hiccups: int) -> None:
        self.num_hiccups = num_hiccups
        self.num_asked = 0

    def fetch(self) -> None:
        self.num_asked += 1
        if self.num_asked <= self.num_hiccups:
            raise subprocess.CalledProcessError(100, "apt-get")


def test_a_registry_that_fails_twice_fails_nothing() -> None:
    registry = Registry(num_hiccups=2)
    assert attempt("haproxy", registry.fetch, AT_ONCE)
    assert registry.num_asked == 3


def test_control_a_registry_that_fails_always_is_noticed() -> None:
    registry = Registry(num_hiccups=99)
    assert not attempt("haproxy", registry.fetch, AT_ONCE)
    assert registry.num_asked == 1 + len(AT_ONCE)


def test_what_was_fetched_is_not_fetched_again_and_a_new_version_is(tmp_path: Path) -> None:
    registry = Registry(num_hiccups=0)
    for version, num_asked in (("1.0", 1), ("1.0", 1), ("1.1", 2)):
        once(tmp_path, "helm3", version, registry.fetch)
        assert registry.num_asked == num_asked


def test_a_check_whose_tool_a_machine_cannot_have_is_skipped_with_the_reason(
    tmp_path: Path,
) -> None:
    def fetch() -> None:
        raise CannotError("only root may install podman")

    once(tmp_path, "containers", "1", fetch)
    with pytest.raises(pytest.skip.Exception, match="containers: only root may install podman"):
        need("containers", tmp_path)


def test_control_a_check_whose_tool_could_not_be_fetched_is_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "containers.cannot").write_text("of a time before")
    once(tmp_path, "containers", "1", Registry(num_hiccups=99).fetch, AT_ONCE)
    need("containers", tmp_path)


def test_what_is_skipped_is_counted_among_all_and_not_as_passed() -> None:
    reports = {"passed": "aaa", "skipped": "bb", "failed": "c", "": "setups", "warnings": "w"}
    assert tally(reports) == "checks passed / all: 3 / 6"


def test_checks_of_a_file_and_of_a_folder_share_a_process() -> None:
    folder = {
        place(f"tests/chart/observability/{name}.py::test_a[x/y::z]") for name in ("test_b", "c")
    }
    assert folder == {"observability"}
    assert place("tests/chart/test_pods.py::test_a[prod:Job/x]") == "test_pods.py"
    assert place("tests/chart/test_pods.py::test_b") == "test_pods.py"
    assert place("tests/chart/test_objects.py::test_b") != place("tests/chart/test_pods.py::test_b")
