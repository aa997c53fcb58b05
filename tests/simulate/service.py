"""How much service tenants got, counted from outside; and by how much any two drifted apart.

Service is delivered tokens: a prompt when it is first computed, generated ones when they are
answered, and the pages of adapters that a tenant brought in; at the engine's prices, over weight.
The bound (docs/decisions/0007-fair-order.md; VTC, Sheng et al. 2024, theorem 4.4) is about spans of
time in which both tenants always have a sequence that waits and could run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations

from engine.fair_order import GENERATED_PRICE, PROMPT_PRICE
from tests.simulate.world import BLOCK_SIZE, World


def bound(longest_prompt: int, num_pages: int) -> float:
    """2 * max(w_p * L_in, w_q * M), with M the tokens that the pool holds."""
    return 2 * max(PROMPT_PRICE * longest_prompt, GENERATED_PRICE * num_pages * BLOCK_SIZE)


class ServiceBooks:
    """Look at `world` after each of its steps with `observe`."""

    def __init__(self, world: World, weights: Mapping[str, float]) -> None:
        self._world = world
        self._weights = weights
        self._resident = world.core.residency.ready_keys()
        self._service = dict.fromkeys(weights, 0.0)
        self._extremes: dict[tuple[str, str], tuple[float, float]] = {}
        """Of pairs whose both waited at the last look: least and greatest difference since."""
        self.worst = 0.0
        """Difference between the service that two tenants got while both were waiting."""
        self.longest = 0.0
        """Most service that one tenant got while it and another one were waiting."""
        self._begun: dict[tuple[str, str], float] = {}

    def observe(self) -> None:
        self._count()
        waiting = self._waiting()
        for pair in combinations(sorted(self._service), 2):
            if not waiting.issuperset(pair):
                self._extremes.pop(pair, None)
                self._begun.pop(pair, None)
                continue
            difference = self._service[pair[0]] - self._service[pair[1]]
            least, most = self._extremes.get(pair, (difference, difference))
            self._extremes[pair] = least, most = min(least, difference), max(most, difference)
            self.worst = max(self.worst, most - least)
            total = self._service[pair[0]] + self._service[pair[1]]
            self.longest = max(self.longest, total - self._begun.setdefault(pair, total))

    def _count(self) -> None:
        tokens: dict[str, float] = defaultdict(float)
        for sequence in self._world.runner.started:
            tokens[sequence.request.tenant_id] += PROMPT_PRICE * sequence.num_prompt_tokens
        self._world.runner.started.clear()
        for output in self._world.seen:
            tenant_id = self._world.asked[output.request_id].request.tenant_id
            tokens[tenant_id] += GENERATED_PRICE * len(output.token_ids)
        resident = self._world.core.residency.ready_keys()
        for key in resident - self._resident:
            num_pages = len(dict(self._world.core.residency.owners())[key])
            tokens[key[0]] += PROMPT_PRICE * num_pages * BLOCK_SIZE
        self._resident = resident
        for tenant_id, amount in tokens.items():
            self._service[tenant_id] += amount / self._weights[tenant_id]

    def _waiting(self) -> set[str]:
        """Tenants with a sequence that waits for its turn or for room, and for nothing else."""
        residency = self._world.core.residency
        return {
            sequence.request.tenant_id
            for sequence in self._world.core.scheduler._waiting
            if sequence.adapter is None or not residency.is_loading(sequence.adapter)
        }
