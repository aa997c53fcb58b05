"""Correctness: norms, activation, both linears, penalties, sampling, log-probabilities.

Ends with goal K13, which the other checks have added to.
"""

from __future__ import annotations

from functools import partial

import torch

from bench import float64
from bench.gpu_checks import NAMES, Checker, dtypes
from bench.gpu_inputs import random_tensor
from bench.gpu_timing import compute_device
from bench.gpu_worker import Bench
from bench.shapes import LLAMA_3_8B, TOY
from kernels import cpu, gpu
from kernels.backends import choose_backend

EPS = 1e-5


def run(bench: Bench) -> None:
    checker, device = Checker(bench), compute_device(dry=bench.dry)
    base = TOY if bench.dry else LLAMA_3_8B
    num_rows = 5 if bench.dry else 67
    for dtype in dtypes(dry=bench.dry):
        rows = random_tensor((num_rows, base.hidden_size), dtype, device)
        wide = random_tensor((num_rows, 2 * base.intermediate_size), dtype, device)
        checker.attempt("norms", partial(_norms, checker, rows))
        checker.attempt("silu_and_mul", partial(_activation, checker, wide))
        checker.attempt("linear", partial(_linear, checker, rows, base.intermediate_size))
    logits = random_tensor((num_rows, base.vocab_size), torch.float32, device, std=4.0)
    checker.attempt("apply_penalties", partial(_penalties, checker, logits))
    checker.attempt("sample", partial(_sample, bench, logits))
    checker.attempt("log_probs", partial(_log_probs, checker, logits))
    checker.report_accuracy()


def _norms(checker: Checker, rows: torch.Tensor) -> None:
    weight = random_tensor(rows.shape[1:], rows.dtype, rows.device)
    got = gpu.rms_norm(rows, weight, EPS)
    checker.close("rms_norm", got, float64.rms_norm(rows, weight, EPS))
    residual = random_tensor(rows.shape, rows.dtype, rows.device)
    total = residual.double() + rows.double()
    got = gpu.add_rms_norm(rows, residual, weight, EPS)
    checker.close("add_rms_norm", got, float64.rms_norm(total, weight, EPS))
    checker.close("add_rms_norm: residual", residual, total)


def _activation(checker: Checker, wide: torch.Tensor) -> None:
    checker.close("silu_and_mul", gpu.silu_and_mul(wide), float64.silu_and_mul(wide))


def _linear(checker: Checker, rows: torch.Tensor, num_out: int) -> None:
    weight = random_tensor((num_out, rows.shape[1]), rows.dtype, rows.device)
    bias = random_tensor((num_out,), rows.dtype, rows.device)
    invariant = choose_backend("gpu", batch_invariant=True)
    want = rows.double() @ weight.double().t() + bias.double()
    checker.close("linear", gpu.linear(rows, gpu.pack_linear(weight), bias), want)
    got = invariant.linear(rows, invariant.pack_linear(weight), bias)
    checker.close("fixed-tile linear", got, want)
    alone = invariant.linear(rows[2:3], invariant.pack_linear(weight), bias)
    what = f"fixed-tile linear, {NAMES[rows.dtype]}: a row alone and in its batch"
    checker.equal(what, alone, got[2:3])


def _penalties(checker: Checker, logits: torch.Tensor) -> None:
    logits = logits.clone()
    counts = torch.randint(-3, 3, logits.shape, device=logits.device, dtype=torch.int32).clamp(0)
    seen = (counts > 0) | (torch.rand(logits.shape, device=logits.device) < 0.1)
    ones = torch.rand(logits.shape[0], device=logits.device)
    repetition, frequency, presence = 1 + ones, ones * 0.3, ones.flip(0) * 0.5
    wide, rate = logits.double(), repetition.double()[:, None]
    want = torch.where(seen, torch.where(wide > 0, wide / rate, wide * rate), wide)
    want -= frequency.double()[:, None] * counts + presence.double()[:, None] * (counts > 0)
    gpu.apply_penalties(logits, counts, seen, repetition, frequency, presence)
    checker.close("apply_penalties", logits, want)


def _sample(bench: Bench, logits: torch.Tensor) -> None:
    """The CPU backend draws in float64; rows at a near-tie may differ, few of many."""
    num_rows = logits.shape[0]
    device = logits.device
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(num_rows, generator=generator, dtype=torch.float64)
    index = torch.arange(num_rows)
    settings = (
        torch.where(index % 4 == 0, 0.0, 0.7).double(),
        torch.where(index % 3 == 0, 0, 40),
        torch.where(index % 2 == 0, 1.0, 0.9).double(),
        torch.where(index % 5 == 0, 0.05, 0.0).double(),
        uniform,
    )
    got = gpu.sample(logits, *(each.to(device) for each in settings)).cpu()
    want = cpu.sample(logits.cpu(), *settings)
    differing = int((got != want).sum())
    passed = differing <= num_rows // 50
    bench.report("sample: rows unlike float64's", "rows", float(differing), passed=passed)


def _log_probs(checker: Checker, logits: torch.Tensor) -> None:
    token_ids = torch.arange(logits.shape[0], device=logits.device) * 3
    want = float64.log_probs(logits)
    chosen, top_ids, top = gpu.log_probs(logits, token_ids, 5)
    checker.close("log_probs: chosen", chosen, want.gather(1, token_ids[:, None])[:, 0])
    best, best_ids = want.topk(5)
    checker.close("log_probs: top 5", top, best)
    checker.equal("log_probs: top 5 ids", top_ids, best_ids)
