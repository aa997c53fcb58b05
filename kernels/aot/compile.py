"""Compiles one Triton kernel for a GPU that is not there, and counts what came out.

Knows no kernel and no limit: `kernels.aot.gate` judges. Invariant: figures come from the machine
code itself (cuobjdump of Triton's own wheel), so they are what a GPU of that kind would run.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu.launch import DIVISIBLE_BY, AotVariant, ceil_div

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
WARP = 32
WIDE_BITS = 128

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?PT?\d*\s+)?([A-Z][\w.]*)", re.MULTILINE)
_TENSOR_CORE = {"HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA"}
_ATOMICS = {"ATOM", "ATOMG", "ATOMS", "RED"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one streaming multiprocessor has (CUDA programming guide, "compute capabilities").

    `is_gated`: its machine code is read, which takes as long as compiling; for the others code
    must come out and fit.
    """

    capability: int
    shared_bytes: int
    shared_bytes_per_block: int
    max_warps: int
    max_blocks: int
    is_gated: bool = False
    registers: int = 65536

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"


_KIB = 1024
ARCHITECTURES = {
    arch.name: arch
    for arch in (
        Architecture(80, 164 * _KIB, 163 * _KIB, 64, 32, is_gated=True),
        Architecture(89, 100 * _KIB, 99 * _KIB, 48, 24),
        Architecture(90, 228 * _KIB, 227 * _KIB, 64, 32, is_gated=True),
        Architecture(100, 228 * _KIB, 227 * _KIB, 64, 32),
        Architecture(120, 100 * _KIB, 99 * _KIB, 48, 24),
    )
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """The machine code of one variant. Instructions are counted as they stand, not as they run,
    and only for a gated architecture.

    `registers` per thread; `shared_bytes` per block; `load_bits`: how many global loads there
    are of each width in bits; `blocks_per_sm`: how many blocks fit on a multiprocessor at once.
    """

    registers: int
    stack_bytes: int
    spills: int
    shared_bytes: int
    blocks_per_sm: int
    load_bits: dict[str, int]
    tensor_core: dict[str, int]
    atomics: int

    @property
    def wide_loads(self) -> int:
        return self.load_bits.get(str(WIDE_BITS), 0)

    @property
    def loads(self) -> int:
        return sum(self.load_bits.values())

    @property
    def wide_share(self) -> float:
        """Of the bytes that the loads bring, each run once, the share that comes 16 at a time."""
        total = sum(int(bits) * count for bits, count in self.load_bits.items())
        return WIDE_BITS * self.wide_loads / total if total else 1.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compile_variant(variant: AotVariant, arch: Architecture) -> Measurement:
    """Raises whatever Triton or ptxas raise when the kernel does not compile."""
    compiled = triton.compile(
        _source(variant),
        target=GPUTarget("cuda", arch.capability, WARP),
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages},
    )
    return _measure(compiled.asm["cubin"], compiled.metadata.shared, variant.num_warps, arch)


def _source(variant: AotVariant) -> ASTSource:
    names: list[str] = variant.kernel.arg_names
    if set(variant.signature) != set(names):
        odd = sorted(set(variant.signature) ^ set(names))
        raise ValueError(f"{variant.name}: signature and kernel differ in {', '.join(odd)}")
    unknown = set(variant.divisible) - set(names)
    if unknown:
        raise ValueError(f"{variant.name}: no such argument: {', '.join(sorted(unknown))}")
    hints = {(names.index(arg),): [["tt.divisibility", DIVISIBLE_BY]] for arg in variant.divisible}
    return ASTSource(
        fn=variant.kernel,
        signature={name: variant.signature[name] for name in names},
        constexprs=variant.constexprs,
        attrs=hints,
    )


def _measure(cubin: bytes, shared_bytes: int, num_warps: int, arch: Architecture) -> Measurement:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _USAGE.search(_cuobjdump("--dump-resource-usage", file.name))
        code = _cuobjdump("--dump-sass", file.name) if arch.is_gated else ""
    assert usage is not None, "cuobjdump reports a kernel's resources"
    registers = int(usage[1])
    opcodes = Counter(_INSTRUCTION.findall(code))
    return Measurement(
        registers=registers,
        stack_bytes=int(usage[2]),
        spills=_count(opcodes, {"LDL", "STL"}),
        shared_bytes=shared_bytes,
        blocks_per_sm=blocks_per_sm(registers, shared_bytes, num_warps, arch),
        load_bits=_load_bits(opcodes),
        tensor_core={name: n for name in sorted(_TENSOR_CORE) if (n := _count(opcodes, {name}))},
        atomics=_count(opcodes, _ATOMICS),
    )


def _cuobjdump(what: str, path: str) -> str:
    command = [str(TOOLS / "cuobjdump"), what, path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _count(opcodes: Counter[str], names: set[str]) -> int:
    return sum(n for opcode, n in opcodes.items() if opcode.split(".")[0] in names)


def _load_bits(opcodes: Counter[str]) -> dict[str, int]:
    """Global loads by width: LDG to registers, LDGSTS to shared memory. 32 bits have no suffix."""
    widths: Counter[str] = Counter()
    for opcode, count in opcodes.items():
        name, *suffixes = opcode.split(".")
        if name in ("LDG", "LDGSTS"):
            widths[next((w for s in suffixes if (w := _width(s))), "32")] += count
    return dict(sorted(widths.items(), key=lambda item: int(item[0])))


def _width(suffix: str) -> str | None:
    if suffix in ("64", "128"):
        return suffix
    return suffix[1:] if suffix in ("U8", "S8", "U16", "S16") else None


def blocks_per_sm(registers: int, shared_bytes: int, num_warps: int, arch: Architecture) -> int:
    """Registers are given to warps in units of 256; each block's shared memory costs 1 KiB more."""
    per_warp = ceil_div(max(registers, 1) * WARP, 256) * 256
    if shared_bytes > arch.shared_bytes_per_block:
        return 0
    return min(
        arch.max_blocks,
        arch.max_warps // num_warps,
        arch.registers // (per_warp * num_warps),
        arch.shared_bytes // (shared_bytes + _KIB),
    )
