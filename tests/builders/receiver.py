"""An operator's system that takes usage events over HTTP. Knows nothing of what they mean."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response


class Receiver:
    """`app` is to be served. It answers `status`, and 400 to a batch with a `refused` subject."""

    def __init__(self) -> None:
        self.app = FastAPI(openapi_url=None)
        self.status = 204
        self.refused: set[str] = set()
        self.calls: list[Request] = []
        self.events: list[dict[str, Any]] = []
        self.app.post("/events")(self._take)

    async def _take(self, request: Request) -> Response:
        self.calls.append(request)
        events = await request.json()
        if any(event["subject"] in self.refused for event in events):
            return Response(status_code=400)
        if self.status == 204:
            self.events += events
        return Response(status_code=self.status)
