"""Which route a request is for, of whoever is refused before there is routing.

Knows nothing of refusals. Invariant: what it finds is a route of the application, the one that the
request would have gone to: so that logs and metrics call it as they call those that were served.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute
from starlette.types import Scope


class RouteFinder:
    """Of one application, once all its routes are there: from the first `find` on."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._by_method: dict[str, list[tuple[re.Pattern[str], BaseRoute]]] = {}

    def find(self, scope: Scope) -> BaseRoute | None:
        """None where there is none. It costs a match for each route with that method, at most."""
        method, path = scope["method"], scope["path"]
        if not self._by_method:
            self._read()
        for pattern, route in self._by_method.get(method, []):
            if pattern.match(path):
                return route
        return None

    def _read(self) -> None:
        for method, pattern, route in self._routes():
            self._by_method.setdefault(method, []).append((pattern, route))

    def _routes(self) -> Iterator[tuple[str, re.Pattern[str], BaseRoute]]:
        for context in iter_route_contexts(self._app.routes):
            for method in context.methods or ():
                yield method, context.path_regex, context.original_route
