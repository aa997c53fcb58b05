"""What breaks in one request ends that request; its neighbours' logits keep every bit.

Each fault is armed on one request while it runs beside four others, at every place where the
engine's work on a step could go wrong for one row. Without what contains it, the step would fail
as a whole: the negative controls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import sampler
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.forward_batch import ForwardBatch
from engine.messages import EngineRequest, FinishReason, TokenOutput
from engine.sequence import Sequence as EngineSequence
from tests.builders.deferring_runner import DeferringRunner
from tests.builders.engines import EngineHarness, RecordingRunner, make_request, tokens_of
from tests.builders.peft_models import VARIANTS, make_adapter, make_tiny_llama

CONFIG = EngineConfig(pool_bytes=1 << 22, block_size=8, batch_invariant=True)
RUNNERS = [RecordingRunner, DeferringRunner]
CULPRIT = "culprit"
TEMPERATURE = 0.625
"""The culprit's alone."""
INTERNAL = "internal_error"
NONFINITE = "nonfinite_logits"
Outputs = dict[str, list[TokenOutput]]


@dataclass
class Target:
    """The engine and the sequence in which something is about to break."""

    harness: EngineHarness
    sequence: EngineSequence

    def break_weights(self, for_kernels: Callable[[], Any]) -> None:
        """Its adapter is one whose kernels' form is `for_kernels()`."""
        assert self.sequence.weights is not None
        self.sequence.weights = _BrokenWeights(self.sequence.weights, for_kernels)

    def break_forward(self, spoil: Callable[[Tensor], None]) -> None:
        """`spoil` gets its row of the logits, after every K and V has been written."""
        runner = self.harness.runner
        runner._decoder = _BrokenDecoder(runner._decoder, self.sequence.request_id, spoil)

    def break_sampling(self) -> None:
        ops = self.harness.runner._ops
        names = {name: getattr(ops, name) for name in dir(ops) if not name.startswith("__")}

        def sample(logits: Tensor, temperature: Tensor, *rest: Tensor) -> Tensor:
            if (temperature == TEMPERATURE).any():
                raise RuntimeError("no such distribution")
            return ops.sample(logits, temperature, *rest)

        self.harness.runner._ops = SimpleNamespace(**{**names, "sample": sample})


@dataclass
class _BrokenWeights:
    weights: Any
    make: Callable[[], Any]

    @property
    def for_kernels(self) -> Any:
        return self.make()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.weights, name)


@dataclass
class _BrokenDecoder:
    decoder: Any
    request_id: str
    spoil: Callable[[Tensor], None]

    def forward(self, batch: ForwardBatch, kv_cache: Any) -> Tensor:
        logits: Tensor = self.decoder.forward(batch, kv_cache)
        for sequence, row in zip(batch.sampling, logits, strict=True):
            if sequence.request_id == self.request_id:
                self.spoil(row)
        return logits


class _GarbledList(list[Any]):
    """Whoever reads some of it finds `value`."""

    def __init__(self, values: Sequence[int], value: object) -> None:
        super().__init__(values)
        self.value = value

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return [self.value] * len(found) if isinstance(index, slice) else found


class _TornList(list[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("torn")


def fail(*_: object) -> Any:
    raise RuntimeError("out of luck")


def unarmed(target: Target) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """`params` are wrong from the start; `arm` breaks something once two tokens are out.

    code: how the request ends; None where it is none the worse.
    """

    arm: Callable[[Target], None] = unarmed
    params: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    code: str | None = INTERNAL


def _garble(token_id: object) -> Callable[[Target], None]:
    def arm(target: Target) -> None:
        target.sequence.token_ids = _GarbledList(target.sequence.token_ids, token_id)

    return arm


def _tear_block_table(target: Target) -> None:
    target.sequence.block_table = _TornList(target.sequence.block_table)


def _break_keys(target: Target) -> None:
    assert target.sequence.block_keys is not None
    target.sequence.block_keys._hasher = None  # type: ignore[assignment]


FAULTS = {
    "hash the blocks": Fault(request={"tenant_id": "\ud800"}, code=None),
    "check the request": Fault(params={"max_tokens": None}),
    "look up the adapter": Fault(lambda target: target.break_weights(fail)),
    "read the block table": Fault(_tear_block_table),
    "read the seed": Fault(params={"seed": "seven"}),
    "read the sampling parameters": Fault(params={"top_k": 1 << 70}),
    "build the tensors": Fault(_garble(None)),
    "embed the token": Fault(_garble(1 << 30)),
    "apply the adapter": Fault(lambda target: target.break_weights(object)),
    "finish the forward pass": Fault(lambda target: target.break_forward(fail)),
    "compute a NaN": Fault(
        lambda target: target.break_forward(lambda row: row[3:4].fill_(torch.nan)), code=NONFINITE
    ),
    "compute an infinity": Fault(
        lambda target: target.break_forward(lambda row: row[5:6].fill_(torch.inf)), code=NONFINITE
    ),
    "compute a negative infinity": Fault(
        lambda target: target.break_forward(lambda row: row[:1].fill_(-torch.inf)), code=NONFINITE
    ),
    "sample": Fault(lambda target: target.break_sampling()),
    "take the token": Fault(params={"stop_token_ids": None}),
    "publish a block": Fault(_break_keys, code=None),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base, the culprit's adapter, and another one."""
    root = tmp_path_factory.mktemp("blast")
    base = make_tiny_llama(root / "base")
    names = ("plain", "patterns")
    return {
        "base": base,
        "store": root / "store",
        **{
            name: make_adapter(base, root / name, seed=seed, **VARIANTS[name])
            for seed, name in enumerate(names)
        },
    }


class Run:
    """Four neighbours, and a culprit in their midst in which `fault` is armed."""

    def __init__(
        self, folders: dict[str, Path], runner: type[RecordingRunner], fault: Fault
    ) -> None:
        self.harness = EngineHarness(folders["base"], folders["store"], CONFIG, runner)
        plain, patterns = (self.harness.publish(folders[name]) for name in ("plain", "patterns"))
        shared = {"max_tokens": 12, "temperature": 1.0}
        adapters = [None, patterns, None, patterns]
        requests = [
            make_request(f"r{i}", [7 * i + 3, *range(4, 9 + i)], adapter=ref, seed=i, **shared)
            for i, ref in enumerate(adapters)
        ]
        params = {**shared, "temperature": TEMPERATURE, **fault.params}
        culprit = make_request(CULPRIT, list(range(20, 30)), adapter=plain, **params)
        requests.insert(2, _with(culprit, fault.request))
        # Adapters that are here already, so that all five are in every step.
        self.harness.run(
            make_request(f"warm {ref.digest}", [3], adapter=ref, max_tokens=1)
            for ref in (plain, patterns)
        )
        self.outputs: Outputs = {request.request_id: [] for request in requests}
        for request in requests:
            self.harness.core.add(request)
        while len(self.outputs[CULPRIT]) < 2 and self.harness.core.has_work:
            self._step()
        for sequence in self.harness.core.scheduler._running:
            if sequence.request_id == CULPRIT:
                fault.arm(Target(self.harness, sequence))
        while self.harness.core.has_work:
            self._step()
        core = self.harness.core
        assert core.scheduler.num_available_pages == core.pool.num_pages, "something leaked"
        later = tokens_of(self.harness.run([make_request("later", [5, 6, 7], max_tokens=3)]))
        assert len(later["later"]) == 3, "the engine goes on"
        self.harness.close()

    @property
    def neighbours(self) -> list[str]:
        return [request_id for request_id in self.outputs if request_id != CULPRIT]

    @property
    def culprit(self) -> list[TokenOutput]:
        return self.outputs[CULPRIT]

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.token_ids]

    def _step(self) -> None:
        for output in self.harness.step():
            self.outputs[output.request_id].append(output)


def _with(request: EngineRequest, changes: dict[str, Any]) -> EngineRequest:
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return EngineRequest(**{**fields, **changes})


@pytest.fixture(scope="module")
def quiet(folders: dict[str, Path]) -> dict[type[RecordingRunner], Run]:
    return {runner: Run(folders, runner, Fault()) for runner in RUNNERS}


def assert_spared(run: Run, quiet: Run) -> None:
    """The neighbours have what they have on a quiet day: same tokens, same bits of logits."""
    for request_id in run.neighbours:
        assert run.outputs[request_id] == quiet.outputs[request_id]
        assert torch.equal(run.harness.logits(request_id), quiet.harness.logits(request_id))


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_one_request_is_that_requests_alone(
    folders: dict[str, Path],
    quiet: dict[type[RecordingRunner], Run],
    runner: type[RecordingRunner],
    name: str,
) -> None:
    fault = FAULTS[name]
    run = Run(folders, runner, fault)
    assert_spared(run, quiet[runner])
    tokens, healthy = run.tokens(CULPRIT), quiet[runner].tokens(CULPRIT)
    endings = [output for output in run.culprit if output.finish_reason is not None]
    assert endings == run.culprit[-1:], "it ends once"
    if fault.code is None:
        assert tokens == healthy
        return
    assert endings[0].finish_reason is FinishReason.ERROR
    assert endings[0].error is not None and endings[0].error.code == fault.code
    assert tokens == healthy[: len(tokens)] and len(tokens) < len(healthy)


def test_there_are_at_least_twelve_places_where_a_row_may_break() -> None:
    assert len(FAULTS) >= 12


@pytest.mark.parametrize(
    ("method", "name"), [("_leave_out", "read the seed"), ("_divide", "embed the token")]
)
def test_control_without_its_containment_a_fault_fails_the_whole_step(
    folders: dict[str, Path],
    quiet: dict[type[RecordingRunner], Run],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    name: str,
) -> None:
    monkeypatch.setattr(EngineCore, method, lambda self, step, *_: self._fail(step))
    run = Run(folders, RecordingRunner, FAULTS[name])
    assert [run.outputs[each][-1].finish_reason for each in run.neighbours] == (
        [FinishReason.ERROR] * 4
    )
    with pytest.raises(AssertionError):
        assert_spared(run, quiet[RecordingRunner])


def test_control_without_the_check_a_nan_becomes_a_token(
    folders: dict[str, Path],
    quiet: dict[type[RecordingRunner], Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sampler, "are_finite", lambda logits: torch.ones(len(logits), dtype=torch.bool)
    )
    run = Run(folders, RecordingRunner, FAULTS["compute a NaN"])
    assert run.culprit[-1].error is None
    assert run.tokens(CULPRIT) != quiet[RecordingRunner].tokens(CULPRIT)


def test_one_reduction_tells_rows_that_are_not_finite() -> None:
    logits = torch.randn(6, 1000)
    logits[1, 7], logits[2, 0], logits[4, 999] = torch.nan, torch.inf, -torch.inf
    logits[5, 3], logits[5, 4] = torch.inf, -torch.inf
    assert sampler.are_finite(logits).tolist() == [True, False, False, True, False, False]


def test_a_step_that_breaks_whoever_is_in_it_fails_each_of_its_requests_once(
    folders: dict[str, Path],
) -> None:
    harness = EngineHarness(folders["base"], folders["store"], CONFIG)
    harness.runner.forward = fail  # type: ignore[method-assign]
    outputs = harness.run(make_request(f"r{i}", [3 + i], max_tokens=2) for i in range(5))
    harness.close()
    codes = [[output.error.code for output in each if output.error] for each in outputs.values()]
    assert codes == [[INTERNAL]] * 5


@pytest.mark.parametrize("num_deaths", [0, 1, 2, 7])
def test_a_request_that_saw_two_engines_die_is_refused(
    folders: dict[str, Path], num_deaths: int
) -> None:
    harness = EngineHarness(folders["base"], folders["store"], CONFIG)
    poisoned = _with(make_request("r", [3], max_tokens=2), {"num_deaths": num_deaths})
    [*_, last] = harness.run([poisoned])["r"]
    harness.close()
    if num_deaths < 2:
        assert last.error is None
    else:
        assert last.error is not None and last.error.code == "request_poisoned"
        assert last.num_generated_tokens == 0
