"""Whose turn it is: waiting sequences in the order of a virtual token counter per tenant.

The least-served tenant's oldest sequence is next (VTC: Sheng et al. 2024, "Fairness in Serving
Large Language Models"). A tenant is charged for its prompts when they are admitted, for what it
generates, and for the adapters that it brings into the pool, over its weight; what is computed
again after a preemption is free. Whoever was away, or only waited for adapters on their way, is
lifted to the *level* and gets no credit for that time.

A tenant that has had less than the share reserved for it, while it had something that waits, goes
before all others (`engine/reserved_share.py`).

Nobody is overtaken for ever. The level is the least counter that was served, and each admission
raises it by its price, shared out among those who wait: so newcomers, however many there are, soon
start behind whoever waits. A sequence for which there is no room yet is passed over by those that
fit, while their tenants are at most `slack_tokens` ahead of its own; once it is `max_age_s` old it
bars the way.

Holds no tensors; knows nothing of pages. It holds nobody back but by those bars. Invariant: the
service, over weight, of two tenants without a reserved share who both wait differs over any time by
at most 2 * max(w_p * L_in, w_q * M) (docs/decisions/0007-fair-order.md), and the slack.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from engine.reserved_share import ReservedShares
from engine.sequence import Sequence

PROMPT_PRICE = 1.0
GENERATED_PRICE = 2.0
"""Of a token; the queue's prices too."""
MAX_PASSED_OVER = 16
"""Sequences without room that are looked at in one step."""
MIN_FORGETTING = 1024
"""Tenants that are known before those who are away are forgotten."""
NOT_LIFTED, DUE, IN_TURN = range(3)
"""Ranks of tenants: those that have to be lifted first, those whose share is due, all others."""


@dataclass(slots=True)
class _Tenant:
    counter: float = 0.0
    weight: float = 1.0
    waiting: list[Sequence] = field(default_factory=list)
    """By arrival."""
    num_running: int = 0
    is_lifted: bool = False
    """Whether the level has been applied since it last had nothing that could run."""


class FairOrder:
    """The waiting sequences of one engine, and what each tenant has had."""

    def __init__(self, max_age_s: float, slack_tokens: float, clock: Callable[[], float]) -> None:
        """clock: seconds that only grow."""
        self._max_age_s = max_age_s
        self._slack_tokens = slack_tokens
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self._waiting: dict[str, _Tenant] = {}
        """Those with a waiting sequence."""
        self._shares = ReservedShares()
        self._level = 0.0
        self._num_waiting = 0
        self._forgets_at = MIN_FORGETTING

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, tenant by tenant."""
        for tenant in self._waiting.values():
            yield from tenant.waiting

    def push(self, sequence: Sequence) -> None:
        """It waits from now on. A preempted one gets back its place among its tenant's."""
        if sequence.queued_at is None:
            sequence.queued_at = self._clock()
        tenant = self._tenants.setdefault(sequence.request.tenant_id, _Tenant())
        tenant.weight = sequence.request.weight
        self._shares.put(sequence.request.tenant_id, sequence.request.reserved_share)
        insort(tenant.waiting, sequence, key=_arrival)
        self._waiting[sequence.request.tenant_id] = tenant
        self._num_waiting += 1

    def clock_load(self, sequence: Sequence) -> None:
        """The adapter that a waiting sequence waits for has arrived; it counts once."""
        if not sequence.is_load_clocked and sequence.queued_at is not None:
            sequence.is_load_clocked = True
            sequence.adapter_load_ms = round(1e3 * (self._clock() - sequence.queued_at))

    def remove(self, sequence: Sequence) -> None:
        """It does not wait any more."""
        tenant_id = sequence.request.tenant_id
        tenant = self._waiting[tenant_id]
        tenant.waiting.remove(sequence)
        self._num_waiting -= 1
        if not tenant.waiting:
            tenant.is_lifted = False
            del self._waiting[tenant_id]
            self._forget_absent()

    def admit(self, sequence: Sequence, num_load_tokens: int) -> None:
        """It runs from now on. Its tenant pays for the prompt, once, and for the adapter's load.

        num_load_tokens: that would have room where the adapter is now; 0 if it was there before.
        """
        tenant = self._tenants[sequence.request.tenant_id]
        num_tokens = num_load_tokens
        if not sequence.is_charged:
            sequence.is_charged = True
            num_tokens += sequence.num_prompt_tokens
        sequence.is_load_clocked = True
        cost = PROMPT_PRICE * num_tokens
        self._charge(sequence.request.tenant_id, tenant, cost)
        tenant.num_running += 1
        self._level += cost / tenant.weight / len(self._waiting)
        self.remove(sequence)

    def suspend(self, sequence: Sequence) -> None:
        """It does not run any more."""
        self._tenants[sequence.request.tenant_id].num_running -= 1

    def charge_generated(self, tenant_ids: Iterable[str]) -> None:
        """Whose sequences got tokens: each tenant as often as one did."""
        for tenant_id, num_tokens in Counter(tenant_ids).items():
            if (tenant := self._tenants.get(tenant_id)) is not None:
                self._charge(tenant_id, tenant, GENERATED_PRICE * num_tokens)

    def service(self, tenant_id: str) -> float:
        """What a tenant has had, in prompt tokens over its weight; to be compared with others'.

        One to which some of its reserved share is due has had least.
        """
        if self._shares.is_due(tenant_id):
            return -inf
        tenant = self._tenants.get(tenant_id)
        return tenant.counter if tenant is not None else self._level

    def spread(self) -> float:
        """By how much the most-served of those who wait is ahead of the least-served; any thread.

        In prompt tokens over weight.
        """
        counters = [each.counter for each in list(self._waiting.values()) if each.is_lifted]
        return max(counters) - min(counters) if counters else 0.0

    def turn(self, sequence: Sequence) -> tuple[float, int]:
        """The lower, the sooner."""
        return (self.service(sequence.request.tenant_id), sequence.arrival)

    def comes_before(self, running: Sequence, waiting: Sequence) -> bool:
        """Whether the rest of a prompt goes before one that waits. It has been paid for: so of two
        tenants with equal service, the one that waits has in truth had less."""
        if running.request.tenant_id == waiting.request.tenant_id:
            return running.arrival < waiting.arrival
        return self.service(running.request.tenant_id) < self.service(waiting.request.tenant_id)

    def in_turn(self, is_ready: Callable[[Sequence], bool]) -> Iterator[Sequence]:
        """The sequences that are ready, in order. One that has not been admitted before the next
        is asked for is passed over; ends where it bars the way."""
        limit, num_passed_over = inf, 0
        heap = [
            (*self._place(tenant_id, each), each.waiting[0].arrival, tenant_id, 0)
            for tenant_id, each in self._waiting.items()
        ]
        heapify(heap)
        while heap:
            rank, counter, _, tenant_id, begin = heappop(heap)
            tenant = self._tenants[tenant_id]
            index = _next_ready(tenant.waiting, begin, is_ready)
            if index is None:
                tenant.is_lifted = tenant.is_lifted and begin > 0
                continue
            sequence = tenant.waiting[index]
            if not tenant.is_lifted:
                self._lift(tenant_id, tenant)
                place = self._place(tenant_id, tenant)
                heappush(heap, (*place, sequence.arrival, tenant_id, index))
                continue
            if rank == IN_TURN:
                if counter > limit:
                    return
                if num_passed_over == 0:
                    self._level = max(self._level, counter)
            yield sequence
            if index < len(tenant.waiting) and tenant.waiting[index] is sequence:
                index += 1
                num_passed_over += 1
                limit = min(limit, tenant.counter + self._slack_tokens)
                if num_passed_over == MAX_PASSED_OVER or self._is_old(sequence):
                    return
            if index < len(tenant.waiting):
                place, arrival = self._place(tenant_id, tenant), tenant.waiting[index].arrival
                heappush(heap, (*place, arrival, tenant_id, index))

    def _charge(self, tenant_id: str, tenant: _Tenant, cost: float) -> None:
        """cost: in prompt tokens."""
        if self._shares.charge(tenant_id, cost):
            self._raise(tenant)  # no credit for the turns that it did not need
        else:
            tenant.counter += cost / tenant.weight

    def _place(self, tenant_id: str, tenant: _Tenant) -> tuple[int, float]:
        """The lower, the sooner."""
        if not tenant.is_lifted:
            return NOT_LIFTED, 0.0
        if self._shares.is_due(tenant_id):
            return DUE, self._shares.due_at(tenant_id)
        return IN_TURN, tenant.counter

    def _lift(self, tenant_id: str, tenant: _Tenant) -> None:
        self._raise(tenant)
        tenant.is_lifted = True
        self._shares.enter(tenant_id)

    def _raise(self, tenant: _Tenant) -> None:
        """To the level, but never past all others who wait."""
        others = (each.counter for each in self._waiting.values() if each.is_lifted)
        highest = max(others, default=inf)
        tenant.counter = max(tenant.counter, min(self._level, highest))

    def _is_old(self, sequence: Sequence) -> bool:
        return sequence.queued_at is None or self._clock() - sequence.queued_at >= self._max_age_s

    def _forget_absent(self) -> None:
        """A counter that the level has passed says nothing any more."""
        if len(self._tenants) < self._forgets_at:
            return
        self._tenants = {
            tenant_id: each
            for tenant_id, each in self._tenants.items()
            if each.waiting or each.num_running or each.counter > self._level
        }
        self._shares.keep(self._tenants)
        self._forgets_at = MIN_FORGETTING + 2 * len(self._tenants)


def _next_ready(
    waiting: list[Sequence], begin: int, is_ready: Callable[[Sequence], bool]
) -> int | None:
    indices = range(begin, len(waiting))
    return next((index for index in indices if is_ready(waiting[index])), None)


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
