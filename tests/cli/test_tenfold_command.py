"""The command itself: it starts light, knows its commands, and runs processes in its own place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=CHECKOUT,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_names_every_command() -> None:
    done = run("-m", "app.cli", "--help")
    assert done.returncode == 0
    for command in ("demo", "serve", "api", "engine", "worker", "migrate", "doctor", "admin"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize("heavy", ["torch", "transformers", "sqlalchemy", "fastapi", "gguf"])
def test_the_command_does_not_load_what_only_processes_need(heavy: str) -> None:
    done = run("-c", f"import sys, app.cli; sys.exit({heavy!r} in sys.modules)")
    assert done.returncode == 0, f"app.cli imports {heavy}"


def test_a_process_that_lacks_its_settings_fails_with_its_own_words() -> None:
    done = run("-m", "app.cli", "migrate", env={})
    assert done.returncode != 0
    assert "TENFOLD_OWNER_DATABASE_URL" in done.stderr


def test_serve_without_a_model_folder_is_a_message(tmp_path: Path) -> None:
    folder = str(tmp_path)
    done = run("-m", "app.cli", "serve", "--model", folder, "--data-dir", folder, "--port", "18999")
    assert done.returncode == 1
    assert "no config.json" in done.stderr
    assert "Traceback" not in done.stderr
