"""Reads admission's scripts: the queue's prelude, the counters, then the script itself.

Knows nothing of what they do. Invariant: names of keys come from the one prelude.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, cast

from redis.asyncio import Redis

from engine.transport.scripts import read_script

Script = Callable[..., Awaitable[Any]]


def register(redis: Redis, *names: str) -> dict[str, Script]:
    """Scripts of `app/admission/lua` by name, ready to be called with `args=(...)`."""
    return {name: cast(Script, redis.register_script(_read(name))) for name in names}


def _read(name: str) -> str:
    body = files("app.admission").joinpath("lua", f"{name}.lua").read_text()
    return f"{read_script('counters', 'app.admission')}\n{body}"
