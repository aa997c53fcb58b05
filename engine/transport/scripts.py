"""Reads the queue's Lua scripts from the package, with the shared prelude in front.

Knows nothing of what they do. Invariant: the key prefix is written down once, in `keys`.
"""

from __future__ import annotations

from importlib.resources import files

from engine.transport import keys


def read_script(name: str, package: str = "engine.transport") -> str:
    """The text of `<package>/lua/<name>.lua`, ready for SCRIPT LOAD."""
    prelude = files("engine.transport").joinpath("lua", "prelude.lua").read_text()
    body = files(package).joinpath("lua", f"{name}.lua").read_text()
    return f"local PREFIX = '{keys.PREFIX}'\n{prelude}\n{body}"
