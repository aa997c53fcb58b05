"""The API's tests run on the event loop that the API runs on (`app.serve`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], uvloop.Loop]]:
    return {"uvloop": uvloop.new_event_loop}
