"""A tenant's client that sends hundreds of requests a second for little of the machine.

For benches whose server shares its cores with whoever asks: with httpx, whose pool looks at every
connection for every request, such a crowd took 66 s of CPU in 77 s, and measured itself. Knows
nothing of what is asked.
"""

from __future__ import annotations

import aiohttp

TIMEOUT_S = 120.0


def crowd_session(url: str, api_key: str) -> aiohttp.ClientSession:
    """As many connections as there are requests in flight. `await session.close()` at the end."""
    return aiohttp.ClientSession(
        url,
        headers={"x-api-key": api_key},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    )
