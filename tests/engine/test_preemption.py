"""Who is preempted goes on with the tokens that it would have had, whatever became of its pages."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import Preemption
from engine.messages import EngineRequest
from engine.policy import choose_victim, choose_way
from engine.sequence import Sequence as EngineSequence
from engine.speeds import Speeds
from tests.builders.engines import make_request, tokens_of
from tests.builders.scripted_loader import BLOCK_SIZE, PAGE_BYTES, make_ref
from tests.builders.simulated_device import (
    VOCAB,
    MisuseError,
    SimulatedCopy,
    SimulatedDevice,
    SimulatedTransfer,
    generate,
)
from tests.builders.simulation import (
    Client,
    Simulation,
    all_of,
    check_answers,
    many_clients,
)

WAYS: list[Preemption] = ["auto", "swap", "recompute"]


class WrongPagesDevice(SimulatedDevice):
    """Negative control: a page goes where its neighbour should."""

    def swap_in(self, copy: SimulatedCopy, pages: Sequence[int]) -> SimulatedTransfer:
        first, second, *others = pages
        return super().swap_in(copy, [second, first, *others])


class HastyTransfer(SimulatedTransfer):
    def is_done(self) -> bool:
        return True


class HastyDevice(SimulatedDevice):
    """Negative control: says that a copy is done while it is still under way."""

    def _queue_copy(self, pages: Sequence[int], effect: Callable[[], None]) -> SimulatedTransfer:
        transfer = HastyTransfer(self, list(pages), 1, effect)
        self.transfers.append(transfer)
        return transfer


class FullHostDevice(SimulatedDevice):
    """The host has less memory than the engine was told."""

    def swap_out(self, pages: Sequence[int]) -> SimulatedCopy:
        raise MemoryError("cannot allocate")


def long_requests(number: int = 4, length: int = 30) -> list[EngineRequest]:
    return [make_request(f"r{i}", [i] * length, max_tokens=30) for i in range(number)]


def right_tokens(requests: list[EngineRequest]) -> dict[str, list[int]]:
    return {
        each.request_id: generate(each.prompt_token_ids, each.adapter, each.sampling.max_tokens)
        for each in requests
    }


def run_until_swapped_out(simulation: Simulation, requests: list[EngineRequest]) -> str:
    """Until a copy to the host has begun; returns whose."""
    for request in requests:
        simulation.core.add(request)
    while not simulation.core.swapping.num_saved:
        simulation.step()
    (transit,) = simulation.device.transfers
    waiting = {each.request_id for each in simulation.core.scheduler._waiting}
    assert transit.pages
    (victim,) = waiting
    return victim


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    clients=many_clients(),
    num_pages=st.integers(9, 24),
    budget=st.integers(1, 64),
    max_num_seqs=st.integers(2, 6),
    delay=st.integers(0, 3),
    install_delay=st.integers(0, 2),
    max_in_flight=st.sampled_from([1, 2]),
    copy_lag=st.integers(0, 4),
    host_pages=st.sampled_from([0, 4, 100]),
    preemption=st.sampled_from(WAYS),
    broken=st.sets(st.integers(0, 60), max_size=1),
)
def test_tokens_do_not_depend_on_preemption_and_nothing_is_left_on_the_host(
    clients: list[Client],
    num_pages: int,
    budget: int,
    max_num_seqs: int,
    delay: int,
    install_delay: int,
    max_in_flight: int,
    copy_lag: int,
    host_pages: int,
    preemption: Preemption,
    broken: set[int],
) -> None:
    simulation = Simulation(
        max_in_flight,
        num_pages=num_pages,
        delay=delay,
        install_delay=install_delay,
        adapter_pages=1,
        copy_lag=copy_lag,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        preemption=preemption,
        host_bytes=host_pages * PAGE_BYTES,
    )
    simulation.device.broken_results = broken
    outputs = simulation.run(clients)
    check_answers(clients, outputs)
    assert simulation.core.host_tier.num_held_bytes == 0
    if preemption == "recompute" or host_pages == 0:
        assert simulation.device.num_swaps.total() == 0


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("preemption", WAYS)
def test_a_setting_forces_the_way_and_tokens_stay(
    preemption: Preemption, max_in_flight: int
) -> None:
    requests = long_requests()
    simulation = Simulation(
        max_in_flight, num_pages=18, copy_lag=2, preemption=preemption, link_bytes_per_s=1e9
    )
    assert tokens_of(simulation.run(all_of(*requests))) == right_tokens(requests)
    num_again = simulation.device.num_starts.total() - len(requests)
    if preemption == "recompute":
        assert num_again > 0 and not simulation.device.num_swaps
    else:
        assert num_again == 0, "nothing is computed twice"
        assert simulation.device.num_swaps["out"] == simulation.device.num_swaps["in"] > 0


@pytest.mark.parametrize(("link_bytes_per_s", "is_swapped"), [(1e9, True), (1.0, False)])
def test_the_measured_speeds_choose_the_way(link_bytes_per_s: float, is_swapped: bool) -> None:
    requests = long_requests()
    simulation = Simulation(1, num_pages=18, link_bytes_per_s=link_bytes_per_s)
    assert tokens_of(simulation.run(all_of(*requests))) == right_tokens(requests)
    assert (simulation.device.num_swaps["out"] > 0) is is_swapped
    if is_swapped:
        assert simulation.core.speeds.link_bytes_per_s != link_bytes_per_s, "it was measured"


@pytest.mark.parametrize("device", [SimulatedDevice, WrongPagesDevice])
def test_pages_come_back_to_their_own_places(device: type[SimulatedDevice]) -> None:
    requests = [
        make_request(name, random.Random(name).choices(range(VOCAB), k=30), max_tokens=30)
        for name in "abcd"
    ]
    simulation = Simulation(2, num_pages=18, preemption="swap", device=device)
    tokens = tokens_of(simulation.run(all_of(*requests)))
    assert simulation.device.num_swaps["in"] > 0
    assert (tokens == right_tokens(requests)) is (device is SimulatedDevice)


def test_the_simulated_device_sees_pages_that_are_freed_before_they_are_copied() -> None:
    simulation = Simulation(1, num_pages=18, preemption="swap", device=HastyDevice)
    with pytest.raises(MisuseError, match="became free while it is copied"):
        simulation.run(all_of(*long_requests()))


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_nobody_else_waits_for_a_copy(max_in_flight: int) -> None:
    """But for those who lack pages: the others go on while it is under way, step by step."""
    simulation = Simulation(max_in_flight, num_pages=18, copy_lag=15, preemption="swap")
    victim = run_until_swapped_out(simulation, long_requests())
    told = [{output.request_id for output in simulation.step()} for _ in range(6)]
    assert simulation.device.transfers, "the copy is under way"
    assert all(told) and victim not in set.union(*told)


def test_a_sequence_runs_only_when_its_pages_are_back_and_the_others_meanwhile() -> None:
    simulation = Simulation(2, num_pages=20, copy_lag=6, preemption="swap")
    core = simulation.core
    for request in [make_request("long", [9], max_tokens=120), *long_requests(3)]:
        core.add(request)
    while not core.swapping.num_restored:
        simulation.step()
    back = [each for each in core.scheduler._running if core.swapping.is_moving(each)]
    others = [each for each in core.scheduler._running if each not in back]
    told = [{output.request_id for output in simulation.step()} for _ in range(4)]
    assert back and all(map(core.swapping.is_moving, back)), "the copies are under way"
    assert all(each.request_id not in names for each in back for names in told)
    assert others and any(told)


@pytest.mark.parametrize("moment", ["leaving", "on the host", "coming back"])
def test_an_abort_frees_the_hosts_bytes_and_the_pages(moment: str) -> None:
    simulation = Simulation(1, num_pages=18, copy_lag=4, preemption="swap")
    core = simulation.core
    victim = run_until_swapped_out(simulation, long_requests())
    if moment != "leaving":
        while simulation.device.transfers:
            simulation.step()
    if moment == "coming back":
        while not core.swapping.num_restored:
            simulation.step()
    assert core.host_tier.num_held_bytes > 0
    assert core.abort(victim, epoch=1)
    core.check_integrity()
    is_copied = moment != "on the host"
    assert (core.host_tier.num_held_bytes > 0) is is_copied, "at once, or when it is not written"
    while simulation.device.transfers:
        simulation.step()
    simulation.step()
    assert core.host_tier.num_held_bytes == 0
    while core.has_work:
        assert all(output.request_id != victim for output in simulation.step())
    simulation.check_all_is_free()


def test_where_the_host_is_full_tokens_are_computed_again() -> None:
    requests = long_requests()
    simulation = Simulation(1, num_pages=18, preemption="swap", host_bytes=3 * PAGE_BYTES)
    assert tokens_of(simulation.run(all_of(*requests))) == right_tokens(requests)
    assert simulation.device.num_starts.total() > len(requests)


def test_a_host_without_the_memory_that_was_promised_costs_nobody_a_token() -> None:
    requests = long_requests()
    simulation = Simulation(1, num_pages=18, preemption="swap", device=FullHostDevice)
    assert tokens_of(simulation.run(all_of(*requests))) == right_tokens(requests)
    assert simulation.core.host_tier.num_held_bytes == 0


def test_blocks_that_others_run_on_stay_in_the_pool() -> None:
    prompt = [i % VOCAB for i in range(5 * BLOCK_SIZE)]
    requests = [make_request(f"r{i}", [*prompt, i], max_tokens=40) for i in range(3)]
    simulation = Simulation(1, num_pages=16, copy_lag=2, preemption="swap")
    run_until_swapped_out(simulation, requests)
    (transfer,) = simulation.device.transfers
    running = list(simulation.core.scheduler._running)
    assert not set(transfer.pages) & {page for each in running for page in each.block_table}
    assert len(transfer.pages) < 1 + 40 // BLOCK_SIZE < len(running[0].block_table)
    while simulation.core.has_work:
        simulation.step()
    assert simulation.core.swapping.num_restored > 0
    assert simulation.device.num_starts.total() == 1, "the others began after the prefix"


@pytest.mark.parametrize("seed", range(6))
def test_sequences_of_one_prefix_that_come_and_go_find_what_they_left(seed: int) -> None:
    """Shared blocks leave with the last one who runs on them; then they are computed again."""
    rng = random.Random(seed)
    prompt = [rng.randrange(VOCAB) for _ in range(4 * BLOCK_SIZE)]
    names = [None, "a", "b"]
    clients = []
    for number in range(14):
        name = rng.choice(names)
        request = make_request(
            f"r{number}",
            [*prompt[: rng.choice([0, 16, 32])], number],
            adapter=make_ref(name) if name else None,
            max_tokens=rng.randrange(10, 60),
            tenant_id=f"ten_{name}" if name else "ten_base",
        )
        clients.append(Client(request, rng.randrange(30), rng.choice([None, None, None, 25])))
    simulation = Simulation(
        1 + seed % 2,
        num_pages=20,
        delay=2,
        install_delay=1,
        adapter_pages=2,
        copy_lag=seed % 4,
        preemption="swap",
        max_num_seqs=6,
    )
    check_answers(clients, simulation.run(clients))
    assert simulation.core.swapping.num_restored > 0
    assert simulation.core.host_tier.num_held_bytes == 0


@pytest.mark.parametrize("is_corrupt", [False, True])
def test_an_adapter_that_left_meanwhile_is_fetched_again_for_who_comes_back(
    is_corrupt: bool,
) -> None:
    # The host has room for the sequence, and then none for the adapter.
    simulation = Simulation(
        1, num_pages=13, adapter_pages=3, preemption="swap", host_bytes=6 * PAGE_BYTES
    )
    core, loader = simulation.core, simulation.loader
    old = make_request("old", [1] * 20, max_tokens=60, tenant_id="ten_old")
    preempted = make_request("new", [2] * 20, adapter=make_ref("a"), max_tokens=60)
    for request in (old, preempted):
        core.add(request)
    outputs: dict[str, list[int]] = {"old": [], "new": []}
    while not core.swapping.num_saved:
        for output in simulation.step():
            outputs[output.request_id] += output.token_ids
    while core.residency.ready_keys():
        for output in simulation.step():
            outputs[output.request_id] += output.token_ids
    loader.corrupt = {"a"} if is_corrupt else set()
    errors = []
    while core.has_work:
        for output in simulation.step():
            outputs[output.request_id] += output.token_ids
            errors += [output.error.code] if output.error else []
    right = right_tokens([old, preempted])
    assert outputs["old"] == right["old"]
    assert loader.started.count("a") == 2
    assert errors == (["adapter_corrupt"] if is_corrupt else [])
    assert outputs["new"] == right["new"][: len(outputs["new"])]
    assert (outputs["new"] == right["new"]) is not is_corrupt
    assert core.host_tier.num_held_bytes == 0


def sequence_of(tenant_id: str, arrival: int) -> EngineSequence:
    return EngineSequence(make_request(f"r{arrival}", [1], tenant_id=tenant_id), arrival)


def test_the_newest_sequence_of_the_most_over_served_tenant_is_the_victim() -> None:
    running = [sequence_of(*each) for each in (("a", 1), ("b", 2), ("b", 3), ("a", 4), ("c", 5))]
    service = {"a": 7.0, "b": 9.0, "c": 1.0}
    assert choose_victim(running, service.__getitem__).arrival == 3
    assert choose_victim(running, lambda tenant_id: 0.0).arrival == 5


@pytest.mark.parametrize(
    ("num_tokens", "num_bytes", "way"),
    [(100, 400, "swap"), (100, 600, "recompute"), (0, 1, "recompute")],
)
def test_the_cheaper_way_is_chosen_unless_one_is_forced(
    num_tokens: int, num_bytes: int, way: str
) -> None:
    speeds = Speeds(prefill_tokens_per_s=10.0, load_bytes_per_s=1.0, link_bytes_per_s=100.0)
    assert choose_way("auto", num_tokens, num_bytes, speeds) == way
    assert choose_way("swap", num_tokens, num_bytes, speeds) == "swap"
    assert choose_way("recompute", num_tokens, num_bytes, speeds) == "recompute"
