"""Golden prompts on their way in: looked at, counted against their tenant's day, and sealed.

Knows nothing of rollouts' rules. Invariants: nothing that a tenant wrote is compiled, rendered or
tokenised on the event loop, nor with a registry connection held; prompts that are to be asked have
been counted, each time that they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from sqlalchemy.ext.asyncio import AsyncSession

from app.availability import Availability
from app.completions.trial import BASE, Trials
from app.context import AppContext
from app.encryption import SealBrokenError
from app.errors import BadRequestError, UnavailableError
from app.rollouts.expectations import ExpectationError
from app.rollouts.golden_asking import tokens_of
from app.rollouts.golden_schemas import GoldenPrompt
from app.rollouts.golden_sealing import GoldenSealer
from app.rollouts.samples import SampleBook
from app.rollouts.tables import Rollout
from app.uploads.quotas import Quota, QuotaExceededError, Quotas

CHECK_S = 10.0  # for all prompts of a rollout; a process at rest takes a tenth of it


async def check_prompts(trials: Trials, prompts: Sequence[GoldenPrompt]) -> None:
    """Whether engines could be asked them, and answers judged by them.

    Raises BadRequestError: `invalid_value` for an expectation without sense, or as
    `Trials.tokens_of`; UnavailableError (`overloaded`) where it takes too long to tell.
    """
    try:
        async with asyncio.timeout(CHECK_S):
            for number, prompt in enumerate(prompts):
                await _check(trials, prompt, f"golden[{number}]")
    except TimeoutError as error:
        raise UnavailableError(
            "The golden prompts could not be looked at in time. Please try again later.",
            code="overloaded",
            internal="golden prompts: slow",
        ) from error


@dataclass(frozen=True, slots=True)
class GoldenIntake:
    """Of one API process."""

    sealer: GoldenSealer
    samples: SampleBook
    redis: Availability

    @classmethod
    def of(cls, context: AppContext) -> GoldenIntake:
        sealer = GoldenSealer(context.settings.queue_secret.get_secret_value())
        return cls(sealer, context.samples, context.redis)

    async def take(
        self, session: AsyncSession, rollout: Rollout, prompts: Sequence[GoldenPrompt], at: datetime
    ) -> None:
        """Have a worker ask them, at once. In the tenant's scope.

        Raises QuotaExceededError, UnavailableError where nobody can count.
        """
        await self.count(session, rollout.tenant_id, len(prompts), at)
        rollout.sealed_golden = self.sealer.seal(rollout.id, prompts)
        rollout.golden_due_at = at

    async def take_again(self, session: AsyncSession, rollout: Rollout, at: datetime) -> None:
        """The same for those that a rollout has already, if it has any: whatever came of them."""
        if rollout.sealed_golden is None:
            return
        await self.count(session, rollout.tenant_id, self._num_sealed(rollout), at)
        rollout.golden_results = None
        rollout.golden_due_at = at

    def _num_sealed(self, rollout: Rollout) -> int:
        assert rollout.sealed_golden is not None
        try:
            return len(self.sealer.open(rollout.id, rollout.sealed_golden))
        except SealBrokenError:  # a worker will say so; nothing can be asked
            return 0

    async def count(
        self, session: AsyncSession, tenant_id: str, num_prompts: int, at: datetime
    ) -> None:
        """Of prompts that are about to be asked. Raises QuotaExceededError, UnavailableError."""
        quota = await Quotas(session, tenant_id).in_force(Quota.GOLDEN_PROMPTS_PER_DAY)
        if quota is None:
            return
        day = at.astimezone(UTC).date()
        count = partial(self.samples.count_golden, tenant_id, day)
        used = await self.redis.ask(partial(count, num_prompts))
        if used > quota.limit:
            await self.redis.ask(partial(count, -num_prompts))
            raise QuotaExceededError(quota, used - num_prompts, num_prompts)


async def _check(trials: Trials, prompt: GoldenPrompt, param: str) -> None:
    try:
        await asyncio.to_thread(prompt.expectation)
    except ExpectationError as error:
        raise BadRequestError(f"Invalid value for '{param}': {error}.", param=param) from error
    await tokens_of(trials, BASE, prompt)
