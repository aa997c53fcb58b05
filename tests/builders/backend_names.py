"""Whether a module is a kernel backend: the functions of `KernelBackend`, and no others."""

from __future__ import annotations

import inspect
from types import ModuleType

from kernels.interface import KernelBackend


def op_signatures(owner: object) -> dict[str, list[tuple[str, object, object]]]:
    """Name of each public function -> its parameters' (name, kind, default), without `self`."""
    names = getattr(owner, "__all__", None) or [name for name in vars(owner) if name[0] != "_"]
    functions = {name: getattr(owner, name) for name in names}
    return {
        name: [
            (parameter.name, parameter.kind, parameter.default)
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "self"
        ]
        for name, function in functions.items()
        if inspect.isfunction(function)
    }


def differences(module: ModuleType) -> list[str]:
    """What `module` lacks, has beside the ops, or takes otherwise; one line each."""
    wanted, offered = op_signatures(KernelBackend), op_signatures(module)
    return [
        f"{module.__name__}.{name}: takes {offered.get(name)}, the interface {wanted.get(name)}"
        for name in sorted(wanted.keys() | offered.keys())
        if wanted.get(name) != offered.get(name)
    ]
