"""Step n + 1 is launched while n runs: the same tokens, and nothing is given away too early."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import FinishReason
from engine.sequence import Sequence as EngineSequence
from tests.builders.adapters import TINY_BASE
from tests.builders.engines import make_request, tokens_of
from tests.builders.scripted_loader import BLOCK_SIZE, ScriptedLoader, make_ref
from tests.builders.simulated_device import MisuseError, SimulatedDevice, generate
from tests.builders.simulation import (
    Client,
    Simulation,
    all_of,
    check_answers,
    delivered,
    many_clients,
)


class WrongRowDevice(SimulatedDevice):
    """Negative control: takes its neighbour's token for a placeholder."""

    def resolve(self, row: int, sampled: Sequence[int]) -> int:
        return sampled[(row + 1) % len(sampled)]


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    clients=many_clients(),
    num_pages=st.integers(16, 40),
    budget=st.integers(1, 64),
    max_num_seqs=st.integers(1, 6),
    delay=st.integers(0, 4),
    install_delay=st.integers(0, 3),
    adapter_pages=st.integers(1, 6),
    broken=st.sets(st.integers(0, 60), max_size=2),
)
def test_tokens_do_not_depend_on_how_many_steps_are_in_flight(
    clients: list[Client],
    num_pages: int,
    budget: int,
    max_num_seqs: int,
    delay: int,
    install_delay: int,
    adapter_pages: int,
    broken: set[int],
) -> None:
    answers = []
    for max_in_flight, breaks in [(1, set()), (2, set()), (2, broken)]:
        simulation = Simulation(
            max_in_flight,
            num_pages=num_pages,
            delay=delay,
            install_delay=install_delay,
            adapter_pages=adapter_pages,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
        )
        simulation.device.broken_launches = {number for number in breaks if number % 2}
        simulation.device.broken_results = {number for number in breaks if number % 2 == 0}
        answers.append(simulation.run(clients))
        check_answers(clients, answers[-1])
    patient = [client.request.request_id for client in clients if client.patience is None]
    one, two = (tokens_of({name: each[name] for name in patient}) for each in answers[:2])
    assert one == two


@pytest.mark.parametrize("device", [SimulatedDevice, WrongRowDevice])
def test_a_placeholder_becomes_the_token_of_its_own_row(device: type[SimulatedDevice]) -> None:
    requests = [make_request(f"r{i}", [i, 2 * i], max_tokens=6) for i in range(3)]
    tokens = tokens_of(Simulation(2, device=device).run(all_of(*requests)))
    right = {each.request_id: generate(each.prompt_token_ids, None, 6) for each in requests}
    assert (tokens == right) is (device is SimulatedDevice)


def test_a_step_is_launched_before_the_one_before_it_is_collected() -> None:
    request = make_request("r", [1, 2], max_tokens=4)
    logs = {}
    for max_in_flight in (1, 2):
        simulation = Simulation(max_in_flight)
        simulation.run(all_of(request))
        logs[max_in_flight] = [f"{what} {number}" for what, number in simulation.device.log]
    assert logs[1] == [f"{what} {n}" for n in range(4) for what in ("launch", "collect")]
    assert logs[2] == (
        ["launch 0"]
        + [f"{what} {n + late}" for n in range(3) for what, late in (("launch", 1), ("collect", 0))]
        + ["collect 3"]
    ), "and the last token, known ahead to be the last, is followed by no step"


def test_a_token_after_a_stop_token_is_computed_in_excess_and_never_delivered() -> None:
    tokens = generate([5, 6], None, 20)
    stop = next(token for token in tokens[3:] if token not in tokens[:3])
    length = tokens.index(stop) + 1
    request = make_request("r", [5, 6], max_tokens=20, stop_token_ids=(stop,))
    simulation = Simulation(2)
    outputs = simulation.run(all_of(request))
    assert delivered(outputs) == {"r": tokens[:length]}
    assert outputs["r"][-1].finish_reason is FinishReason.STOP
    assert outputs["r"][-1].num_generated_tokens == length
    assert simulation.core.num_steps == length + 1


@pytest.mark.parametrize("how", ["stop", "abort"])
def test_pages_and_adapter_of_what_has_ended_stay_until_the_step_in_flight_has_landed(
    how: str,
) -> None:
    ref = make_ref("a")
    stop = generate([7], ref, 3)[-1]
    stops = (stop,) if how == "stop" else ()
    simulation = Simulation(2)
    core = simulation.core
    core.add(make_request("r", [7], adapter=ref, max_tokens=20, stop_token_ids=stops))
    outputs = [simulation.step() for _ in range(4)]
    if how == "stop":
        assert outputs[-1][0].finish_reason is FinishReason.STOP
    else:
        assert core.abort("r", epoch=1)
    assert core.scheduler.num_sequences == 0 and core.has_work and core.has_runnable
    assert core.residency.num_idle_pages == 0
    assert simulation.step() == []
    assert not core.has_work
    simulation.check_all_is_free()


@pytest.mark.parametrize("where", ["broken_launches", "broken_results"])
def test_a_step_that_breaks_answers_its_own_sequences_once_and_spares_the_others(
    where: str,
) -> None:
    early, late = make_request("early", [1], max_tokens=9), make_request("late", [2], max_tokens=9)
    simulation = Simulation(2)
    setattr(simulation.device, where, {2})
    outputs = simulation.run([Client(early), Client(late, arrives_at=3)])
    check_answers([Client(early), Client(late)], outputs)
    assert len(delivered(outputs)["early"]) == 2, "what was sampled before is delivered"
    assert outputs["early"][-1].error is not None
    assert outputs["early"][-1].error.code == "internal_error"
    assert len(delivered(outputs)["late"]) == 9


def test_preemption_waits_for_the_step_in_flight() -> None:
    requests = [make_request(f"r{i}", [i] * 30, max_tokens=30) for i in range(4)]
    simulation = Simulation(2, num_pages=18, preemption="recompute")
    outputs = simulation.run(all_of(*requests))
    assert simulation.device.num_starts.total() > len(requests), "one was preempted"
    check_answers(all_of(*requests), outputs)
    assert {len(tokens) for tokens in delivered(outputs).values()} == {30}


def test_younger_streams_do_not_keep_an_older_prompt_from_its_pages() -> None:
    old = make_request("old", [1] * 60, adapter=make_ref("a"), max_tokens=1)
    young = [make_request(name, [2], max_tokens=60) for name in ("young", "younger")]
    num_steps = []
    for max_in_flight in (1, 2):
        simulation = Simulation(
            max_in_flight, num_pages=11, delay=2, adapter_pages=1, max_num_batched_tokens=8
        )
        for request in (old, *young):
            simulation.core.add(request)
        while all(output.request_id != "old" for output in simulation.step()):
            pass
        num_steps.append(simulation.core.num_steps)
    assert num_steps[1] <= num_steps[0] + 2


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_request_whose_adapter_is_being_copied_to_the_device_holds_nobody_up(
    max_in_flight: int,
) -> None:
    simulation = Simulation(max_in_flight, install_delay=6)
    slow = make_request("slow", [1], adapter=make_ref("a"), max_tokens=2)
    quick = make_request("quick", [2], max_tokens=5)
    outputs = simulation.run(all_of(slow, quick))
    check_answers(all_of(slow, quick), outputs)
    assert list(outputs) == ["quick", "slow"]


def test_the_simulated_device_sees_a_page_that_was_given_away_too_early() -> None:
    device = SimulatedDevice(EngineConfig(block_size=BLOCK_SIZE), max_in_flight=2)
    residency = EngineCore(device._config, TINY_BASE, device, ScriptedLoader(), "sim").residency
    first, second = (EngineSequence(make_request(name, [1, 2]), 0) for name in ("a", "b"))
    first.block_table, second.block_table = [3], [3]
    device.execute({first: 2}, residency)
    with pytest.raises(MisuseError, match="in use by a step in flight"):
        device.execute({second: 2}, residency)


def test_the_simulated_device_sees_an_adapter_that_was_evicted_in_use() -> None:
    simulation = Simulation(2)
    simulation.core.add(make_request("r", [1], adapter=make_ref("a"), max_tokens=9))
    simulation.step()
    simulation.step()
    (pages,) = dict(simulation.core.residency.owners()).values()
    simulation.device.install(make_ref("b"), pages)
    with pytest.raises(MisuseError, match="adapter is gone"):
        simulation.step()
