"""What an engine refuses at its command line, in words and before it loads anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from engine import server


def test_a_gpu_that_is_not_there_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server, "has_cuda", lambda: False)
    engine = typer.Typer()
    engine.command()(server.serve)
    options = ["--model", str(tmp_path), "--redis-url", "redis://none", "--adapter-store", "none"]
    refused = CliRunner().invoke(engine, [*options, "--device", "cuda"])
    assert refused.exit_code == 2
    assert "no CUDA device is usable" in refused.output


def test_an_engine_without_the_secret_of_the_queue_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TENFOLD_QUEUE_SECRET", raising=False)
    engine = typer.Typer()
    engine.command()(server.serve)
    options = ["--model", str(tmp_path), "--redis-url", "redis://none", "--adapter-store", "none"]
    refused = CliRunner().invoke(engine, options)
    assert refused.exit_code == 2
    assert "TENFOLD_QUEUE_SECRET" in refused.output
