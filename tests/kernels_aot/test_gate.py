"""The gate refuses machine code that is slow for a visible reason, and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kernels.aot.compile import ARCHITECTURES, Measurement, blocks_per_sm, compile_variant
from kernels.aot.gate import Budget, Budgets, judge, read_budgets, record_budgets
from kernels.gpu.launch import AotVariant
from tests.kernels_aot.samples import clean, faulty

VARIANTS = {each.name: each for each in (*clean.aot_variants(), *faulty.aot_variants())}
NOTHING_RECORDED = Budgets({})


@pytest.fixture(scope="module", params=["sm_80", "sm_90"])
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def reasons(name: str, architecture: str) -> list[str]:
    variant = VARIANTS[name]
    measured = compile_variant(variant, ARCHITECTURES[architecture])
    return judge(variant, architecture, measured, NOTHING_RECORDED)


@pytest.mark.parametrize("name", ["copy", "product"])
def test_clean_kernels_pass(name: str, architecture: str) -> None:
    assert reasons(name, architecture) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("spills", "spills: "),
        ("narrow", "no 16-byte load"),
        ("atomic", "1 atomic instructions"),
        ("no_dot", "no tensor-core instruction"),
    ],
)
def test_each_fault_is_refused_for_its_own_reason(
    name: str, reason: str, architecture: str
) -> None:
    (only,) = reasons(name, architecture)
    assert only.startswith(reason)


def test_a_warp_of_tensor_cores_is_seen_as_each_architecture_has_it() -> None:
    product = VARIANTS["product"]
    assert set(compile_variant(product, ARCHITECTURES["sm_80"]).tensor_core) == {"HMMA"}
    assert set(compile_variant(product, ARCHITECTURES["sm_90"]).tensor_core) == {"HGMMA"}


@pytest.mark.parametrize("name", ["sm_89", "sm_100", "sm_120"])
def test_other_architectures_compile(name: str) -> None:
    assert compile_variant(VARIANTS["product"], ARCHITECTURES[name]).registers > 0


def test_a_signature_that_is_not_the_kernels_is_refused() -> None:
    wrong = dataclasses.replace(VARIANTS["copy"], signature={"x_ptr": "*bf16"})
    with pytest.raises(ValueError, match="differ in BLOCK, num_elements, y_ptr"):
        compile_variant(wrong, ARCHITECTURES["sm_90"])


def measurement() -> Measurement:
    return Measurement(
        registers=96,
        stack_bytes=0,
        spills=0,
        shared_bytes=38 * 1024,
        blocks_per_sm=5,
        load_bits={"32": 8, "128": 8},
        tensor_core={"HMMA": 16},
        atomics=0,
    )


def judged(variant: AotVariant, measured: Measurement, recorded: Measurement) -> list[str]:
    budgets = Budgets({f"{variant.name}@sm_90": Budget.of(recorded)})
    return judge(variant, "sm_90", measured, budgets)


@pytest.mark.parametrize(
    ("worse", "reason"),
    [
        ({"registers": 97}, "97 registers, budget 96"),
        ({"shared_bytes": 38 * 1024 + 1}, "38913 bytes of shared memory, budget 38912"),
        ({"blocks_per_sm": 4}, "4 blocks per SM, floor 5"),
        ({"load_bits": {"32": 12, "128": 8}}, "73% of loaded bytes in 16-byte loads, floor 80%"),
    ],
)
def test_a_figure_worse_than_its_budget_is_refused(worse: dict[str, object], reason: str) -> None:
    variant = VARIANTS["product"]
    assert judged(variant, measurement(), measurement()) == []
    assert judged(variant, dataclasses.replace(measurement(), **worse), measurement()) == [reason]


def test_a_variant_without_a_budget_is_refused_once_any_is_recorded() -> None:
    other = Budgets({"another@sm_90": Budget.of(measurement())})
    (only,) = judge(VARIANTS["product"], "sm_90", measurement(), other)
    assert "no budget is recorded" in only


def test_recording_one_release_keeps_the_budgets_of_another(tmp_path: Path) -> None:
    path = tmp_path / "budgets.json"
    record_budgets(path, "3.6.0", [("b@sm_80", measurement()), ("a@sm_90", measurement())])
    record_budgets(path, "3.9.0", [("a@sm_90", measurement())])
    assert set(read_budgets(path, "3.6.0").of) == {"b@sm_80", "a@sm_90"}
    assert read_budgets(path, "3.9.0").of == {"a@sm_90": Budget.of(measurement())}
    assert read_budgets(path, "3.7.1").of == {}


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "num_warps", "blocks"),
    [
        (80, 38 * 1024, 4, 5),  # shared memory: 228 KiB / 39 KiB
        (128, 5 * 1024, 4, 4),  # registers: 65536 / (128 * 128)
        (16, 0, 1, 32),  # the most blocks that there may be
        (16, 0, 8, 8),  # the most warps
        (32, 228 * 1024, 4, 0),  # more than a block may have
    ],
)
def test_blocks_per_sm_are_bound_by_the_scarcest(
    registers: int, shared_bytes: int, num_warps: int, blocks: int
) -> None:
    assert blocks_per_sm(registers, shared_bytes, num_warps, ARCHITECTURES["sm_90"]) == blocks
