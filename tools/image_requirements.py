"""Locks what the api image installs, with hashes: `deploy/api.requirements.txt`.

    python -m tools.image_requirements

The list is the project's own without what only an engine needs; versions are those of
`constraints.txt`. Knows nothing of images.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
LOCK = CHECKOUT / "deploy" / "api.requirements.txt"
BUILD_LOCK = CHECKOUT / "deploy" / "build.requirements.txt"
# Loaded by engines and by the demo's launcher alone.
ENGINE_ONLY = frozenset({"gguf", "numba", "torch", "transformers", "triton"})
BUILD = ["hatchling>=1.25", "cyclonedx-bom>=7"]


def api_requirements() -> list[str]:
    """What an API, a worker or a migration imports of the dependencies, and what sends traces."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["tracing"]
    return [each for each in wanted if name_of(each) not in ENGINE_ONLY]


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return found[0].lower().replace("_", "-")


def main() -> None:
    _lock(api_requirements(), LOCK, "--constraint", str(CHECKOUT / "constraints.txt"))
    _lock(BUILD, BUILD_LOCK)


def _lock(requirements: list[str], target: Path, *options: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], check=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet", "--no-header"),
            *("--generate-hashes", "--no-annotate", "--python-version", "3.11"),
            *("--python-platform", "linux", "--output-file", target, *options),
        ],
        input="\n".join(requirements),
        text=True,
        check=True,
    )


if __name__ == "__main__":
    main()
