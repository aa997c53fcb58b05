"""The whole engine over a simulated device, and clients that come and go.

After every step the books are checked; in the end all is free, and each request has ended once with
the tokens that the device's function gives for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import EngineRequest, TokenOutput
from tests.builders.adapters import TINY_BASE
from tests.builders.engines import make_request
from tests.builders.scripted_loader import BLOCK_SIZE, PAGE_BYTES, ScriptedLoader, make_ref
from tests.builders.simulated_device import VOCAB, SimulatedDevice, generate

MAX_STEPS = 5000
Outputs = dict[str, list[TokenOutput]]


@dataclass(frozen=True)
class Client:
    """Sends `request` before step `arrives_at`; may go away after `patience` more steps."""

    request: EngineRequest
    arrives_at: int = 0
    patience: int | None = None


class Simulation:
    def __init__(
        self,
        max_in_flight: int,
        *,
        num_pages: int = 40,
        delay: int = 0,
        install_delay: int = 0,
        adapter_pages: int = 2,
        copy_lag: int = 0,
        device: type[SimulatedDevice] = SimulatedDevice,
        **config: Any,
    ) -> None:
        settings = EngineConfig(
            block_size=BLOCK_SIZE,
            pool_bytes=num_pages * PAGE_BYTES,
            debug_poison_pages=True,
            **config,
        )
        self.device = device(settings, max_in_flight, copy_lag)
        sizes = dict.fromkeys("abcd", adapter_pages)
        self.loader = ScriptedLoader(delay, install_delay, sizes, on_install=self.device.install)
        self.core = EngineCore(settings, TINY_BASE, self.device, self.loader, "sim")

    def run(self, clients: Sequence[Client]) -> Outputs:
        """Until all have ended; an aborted request must not be heard of again."""
        outputs: Outputs = defaultdict(list)
        gone: set[str] = set()
        for now in range(MAX_STEPS):
            for client in clients:
                request = client.request
                if client.arrives_at == now:
                    self.core.add(request)
                if client.patience is not None and client.arrives_at + client.patience == now:
                    ended = any(output.finish_reason for output in outputs[request.request_id])
                    assert self.core.abort(request.request_id, epoch=1) is not ended
                    gone.add(request.request_id)
            for output in self.step():
                assert output.request_id not in gone
                outputs[output.request_id].append(output)
            if not self.core.has_work and all(client.arrives_at < now for client in clients):
                for _ in range(self.loader.install_delay):
                    self.step()  # an adapter may be on its way into its pages
                self.check_all_is_free()
                return outputs
        raise AssertionError("no end in sight")

    def step(self) -> list[TokenOutput]:
        batches = self.core.step()
        self.core.check_integrity()
        return [output for batch in batches.values() for output in batch.outputs]

    def check_all_is_free(self) -> None:
        assert self.core.scheduler.num_available_pages == self.core.pool.num_pages


def all_of(*requests: EngineRequest) -> list[Client]:
    return [Client(request) for request in requests]


def delivered(outputs: Outputs) -> dict[str, list[int]]:
    """Tokens by request, of those too that an error or their client ended."""
    return {
        request_id: [token for part in parts for token in part.token_ids]
        for request_id, parts in outputs.items()
    }


def check_answers(clients: Sequence[Client], outputs: Outputs) -> None:
    """Each request ended once, with a prefix of its tokens, all of them delivered and counted."""
    for client in clients:
        request, parts = client.request, outputs[client.request.request_id]
        tokens = delivered(outputs)[request.request_id]
        true = generate(request.prompt_token_ids, request.adapter, request.sampling.max_tokens)
        assert tokens == true[: len(tokens)]
        stops = [token for token in tokens if token in request.sampling.stop_token_ids]
        assert stops in ([], tokens[-1:]), "nothing is delivered after a stop token"
        assert [part.index for part in parts if part.token_ids] == list(range(len(tokens)))
        ends = [part for part in parts if part.finish_reason is not None]
        assert len(ends) == 1 or (client.patience is not None and not ends)
        assert all(end is parts[-1] and end.num_generated_tokens == len(tokens) for end in ends)


@st.composite
def many_clients(draw: st.DrawFn) -> list[Client]:
    clients = []
    for number in range(draw(st.integers(1, 10))):
        name = draw(st.sampled_from([None, None, "a", "b", "c", "d"]))
        every = draw(st.sampled_from([0, 3, 9]))
        request = make_request(
            f"r{number}",
            [(number * 31 + i) % VOCAB for i in range(draw(st.integers(1, 50)))],
            adapter=make_ref(name) if name else None,
            max_tokens=draw(st.integers(1, 25)),
            stop_token_ids=tuple(range(0, VOCAB, every)) if every else (),
        )
        patience = draw(st.one_of(st.none(), st.none(), st.integers(0, 30)))
        clients.append(Client(request, draw(st.integers(0, 20)), patience))
    return clients
