"""No key opens anything of another tenant's, and no answer tells that there is one.

Every trial is a request: some route, asked by somebody, about something of their own, of the other
tenant's, or of nobody's. TEST_FAULTS=soak tries 100,000 times, TEST_TRIALS as often as it says.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)

from app.settings import Settings
from tests.billing.isolation_world import ABSENT, Route, Tenant, World, open_world
from tests.fixtures.servers import TestDatabase

IS_SOAK = os.environ.get("TEST_FAULTS") == "soak"
NUM_TRIALS = int(os.environ.get("TEST_TRIALS", 100_000 if IS_SOAK else 3_000))
TRIALS_A_STEP = 8
STEPS = 30
EXAMPLES = 20 if IS_SOAK else 5
"""With the same two tenants: to make two takes as long as hundreds of trials."""
# What says who asked, when, or how long it took, and not what there is.
UNTOLD = ("x-request-id", "request-id", "content-length", "openai-processing-ms", "date")
CALLERS = ("nobody", "garbled", "dead", "other scope", "owner", "owner", "owner")
OBJECTS = ("own", "foreign", "foreign", "foreign", "absent")
CHANGES = ("nothing", "nothing", "revoked", "deleted", "suspended or resumed")
"""What becomes of a key or of its tenant before doors are tried."""


@dataclass(frozen=True, slots=True)
class Trial:
    """`names`: what is asked about. `caller`: one of `CALLERS`, of tenant `mine`."""

    route: Route
    caller: str
    about: str
    names: dict[str, str]
    mine: Tenant
    other: Tenant

    def __str__(self) -> str:
        path = self.route.at(self.names)
        return f"{self.caller} of {self.mine.slug}, {self.about}: {self.route.method} {path}"

    @property
    def is_let_in(self) -> bool:
        """Whether the key opens this route, so that what is answered depends on the object."""
        return (
            self.caller == "owner"
            and self.route.policy not in ("operator", "public")
            and not self.mine.is_suspended
            and self.is_under_own_path
        )

    @property
    def is_under_own_path(self) -> bool:
        return "tenant" not in self.route.parameters or self.names["tenant"] == self.mine.slug

    def expected(self) -> set[int] | None:
        """The statuses that are right; None where it depends on the object."""
        policy = self.route.policy
        if policy == "public":
            return {200, 503}
        if policy == "operator" or self.caller in ("nobody", "garbled", "dead"):
            return {401}
        if self.mine.is_suspended:
            return {403}
        if not self.is_under_own_path:
            return {404}
        if self.caller == "other scope":
            return {403}
        if self.about == "own":
            return {200}
        return {404} if self.route.objects else None


METRICS = "/metrics"
"""Open to all who reach the operators' port. It tells how much the busiest tenants do, by id."""


class Doors(RuleBasedStateMachine):
    """Two tenants, and everybody at every door. The class's own members are a whole run's."""

    world: ClassVar[World]
    tenants: ClassVar[list[Tenant]]
    run: ClassVar[Callable[[Coroutine[Any, Any, Any]], Any]]
    tried: ClassVar[Counter[str]]
    leaks: ClassVar[list[str]]

    @rule(data=st.data(), change=st.sampled_from(CHANGES), who=st.integers(0, 1))
    def try_some_doors(self, data: st.DataObject, change: str, who: int) -> None:
        """One rule: of several, whole runs would be without the one that tries."""
        self.run(self._change(change, self.tenants[who]))
        for _ in range(TRIALS_A_STEP):
            self.run(self._try(self._draw(data)))

    async def _change(self, change: str, tenant: Tenant) -> None:
        if change in ("revoked", "deleted"):
            await self.world.kill_key(tenant, is_deleted=change == "deleted")
        elif change == "suspended or resumed":
            verb = "resume" if tenant.is_suspended else "suspend"
            await self.world.operator.done("POST", f"/tenants/{tenant.id}/{verb}")
            tenant.is_suspended = not tenant.is_suspended

    def _draw(self, data: st.DataObject) -> Trial:
        route = data.draw(st.sampled_from(self.world.routes))
        who = data.draw(st.integers(0, 1))  # a tenant itself would be printed, with its keys
        mine, other = self.tenants[who], self.tenants[1 - who]
        caller, about = data.draw(st.sampled_from(CALLERS)), data.draw(st.sampled_from(OBJECTS))
        if about == "own" and caller == "owner" and not route.is_read_only:
            about = "foreign"  # what one may do to one's own is tested elsewhere
        names = dict(mine.names)
        if about != "own":
            names |= self._not_mine(data, route, other.names if about == "foreign" else ABSENT)
        return Trial(route, caller, about, names, mine, other)

    def _not_mine(
        self, data: st.DataObject, route: Route, theirs: dict[str, str]
    ) -> dict[str, str]:
        """At least one object of the path or the body is theirs, and perhaps the tenant too."""
        kinds = route.objects
        if kinds:
            kinds = data.draw(st.lists(st.sampled_from(kinds), min_size=1, unique=True))
        if "adapter" in kinds:  # an alias is a name below its adapter
            kinds = [*kinds, "alias"]
        if data.draw(st.booleans()):
            kinds = [*kinds, "tenant"]
        return {kind: theirs[kind] for kind in kinds}

    async def _try(self, trial: Trial) -> None:
        secret = self._secret(trial)
        is_safe = trial.route.is_read_only
        before = None if is_safe else await self.world.possessions(trial.other)
        response = await self.world.ask(trial.route, trial.names, secret)
        Doors.tried[f"{trial.caller}, {trial.about}"] += 1
        expected = trial.expected()
        status = response.status_code
        self._expect(status in expected if expected else status < 500, trial, f"is {status}")
        self._check_marks(trial, response)
        if before is not None:
            unchanged = await self.world.possessions(trial.other) == before
            self._expect(unchanged, trial, "changes it")
        if trial.about == "foreign" and trial.is_let_in and trial.route.objects:
            await self._check_absent(trial, secret, response)

    def _secret(self, trial: Trial) -> str | None:
        secrets = trial.mine.secrets
        match trial.caller:
            case "nobody":
                return None
            case "garbled":
                return secrets["all"][:-1] + "-"
            case "dead":
                return trial.mine.dead[-1]
            case "other scope":
                return secrets.get(trial.route.policy, secrets["all"])
        return secrets["all"]

    def _check_marks(self, trial: Trial, response: httpx.Response) -> None:
        """Nothing of the other tenant's is in the answer that was not in the question."""
        answer = response.text + repr(response.headers.multi_items())
        for sent in trial.names.values():
            answer = answer.replace(sent, "")
        marks = trial.other.marks - set(trial.names.values())
        if trial.route.path == METRICS:
            marks -= {trial.other.id}
        for mark in marks:
            self._expect(mark not in answer, trial, f"tells {mark}")

    async def _check_absent(
        self, trial: Trial, secret: str | None, response: httpx.Response
    ) -> None:
        """What is another's is answered as what is nobody's, to the byte."""
        theirs = trial.other.names
        absent = {
            kind: ABSENT[kind] if name == theirs[kind] else name
            for kind, name in trial.names.items()
        }
        again = await self.world.ask(trial.route, absent, secret)
        foreign, nobodys = _told(response, trial.names), _told(again, absent)
        self._expect(foreign == nobodys, trial, f"is {foreign}, and {nobodys} where there is none")

    def _expect(self, holds: bool, trial: Trial, why: str) -> None:
        if not holds:
            Doors.leaks.append(f"{trial}: {why}")
        assert holds, f"{trial}: {why}"


class CrossedDoors(Doors):
    """Every key opens the other tenant's doors: what a failure would be."""

    def _secret(self, trial: Trial) -> str | None:
        return trial.other.secrets["all"]


def _told(response: httpx.Response, names: dict[str, str]) -> tuple[int, str, list[Any]]:
    """Everything that a client is told, but for the names that it sent itself."""
    text = response.text
    for kind, name in names.items():
        text = text.replace(name, f"<{kind}>")
    headers = [item for item in response.headers.multi_items() if item[0] not in UNTOLD]
    return response.status_code, text, headers


def try_doors(
    machine: type[Doors], settings: Settings, database: TestDatabase, num_trials: int
) -> None:
    """That many trials. Raises AssertionError at the first leak."""
    Doors.tried, Doors.leaks = Counter(), []
    once = hypothesis.settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    with asyncio.Runner() as runner, open_world(settings, database.owner_url, runner) as world:
        Doors.world, Doors.run = world, staticmethod(runner.run)
        while Doors.tried.total() < num_trials:
            Doors.tenants = [runner.run(world.new_tenant()) for _ in range(2)]
            run_state_machine_as_test(machine, settings=once)


@pytest.mark.timeout(0)
def test_no_door_opens_for_another_tenant_and_no_answer_tells_of_one(
    settings: Settings, database: TestDatabase, record_property: Callable[[str, object], None]
) -> None:
    try:
        try_doors(Doors, settings, database, NUM_TRIALS)
    finally:
        record_property("trials", Doors.tried.total())
        record_property("leaks", len(Doors.leaks))
    # All that can be tried was: in so many trials nothing is left out by chance.
    assert len(Doors.tried) == len(set(CALLERS)) * len(set(OBJECTS))


def test_control_keys_that_open_the_other_tenants_doors_are_noticed(
    settings: Settings, database: TestDatabase
) -> None:
    with pytest.raises(AssertionError):
        try_doors(CrossedDoors, settings, database, 200)
    assert Doors.leaks
