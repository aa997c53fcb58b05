"""Finds what is to be compiled: `aot_variants()` of every module in `kernels.gpu`.

Knows no kernel. Invariant: a kernel that no variant lists is a finding, so that none escapes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from triton.runtime import JITFunction

from kernels.gpu.launch import AotVariant

KERNEL_SUFFIX = "_kernel"


@dataclass(frozen=True, slots=True)
class Shipped:
    """A variant and the module whose `aot_variants()` gave it."""

    module: str
    variant: AotVariant


def modules_of(name: str) -> list[str]:
    """Every module of a package, by its full name; a module is alone."""
    path = getattr(importlib.import_module(name), "__path__", None)
    if path is None:
        return [name]
    return sorted(info.name for info in pkgutil.walk_packages(path, f"{name}."))


def collect(modules: Iterable[str]) -> list[Shipped]:
    """All variants. Raises ValueError when two have one name."""
    shipped = [
        Shipped(name, variant)
        for name in modules
        if (module := importlib.import_module(name)) and hasattr(module, "aot_variants")
        for variant in module.aot_variants()
    ]
    counts = Counter(each.variant.name for each in shipped)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"more than one variant is called {', '.join(twice)}")
    return shipped


def unlisted_kernels(modules: Iterable[str], shipped: Iterable[Shipped]) -> list[str]:
    """Jitted functions called `..._kernel` that no variant compiles. Others are their parts."""
    listed = {id(each.variant.kernel) for each in shipped}
    return [
        f"{name}.{attribute}"
        for name in modules
        for attribute, value in sorted(vars(importlib.import_module(name)).items())
        if isinstance(value, JITFunction)
        and attribute.endswith(KERNEL_SUFFIX)
        and value.fn.__module__ == name
        and id(value) not in listed
    ]
