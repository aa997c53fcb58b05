"""Which addresses a name may stand for: those of the public internet, and what an operator adds.

Knows nothing of HTTP. Invariants: an address is judged as what it finally reaches, so that an IPv4
address inside an IPv6 one is judged as itself; of a name that has one forbidden address none is
used; what was judged is what is connected to: nobody resolves the name a second time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable

from app.imports.errors import ImportFailure, source_failed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Awaitable[list[str]]]

RESOLVE_TIMEOUT_S = 10.0
# Addresses that a gateway turns into others: NAT64, 6to4 and its relays, Teredo, and the old
# IPv4-compatible ones. What they reach cannot be told from here.
_TUNNELS = ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "192.88.99.0/24", "2001::/32", "::/96")
# What `ipaddress` takes for public, here or in some of its versions, and what is not: protocol
# assignments, of which clouds have used one for their metadata; the host of a machine at Azure,
# whatever network it is in; site-local, documentation, and segment routing within a network.
_NOT_PUBLIC = ("192.0.0.0/24", "168.63.129.16/32", "fec0::/10", "3fff::/20", "5f00::/16")
_FORBIDDEN = tuple(map(ipaddress.ip_network, (*_TUNNELS, *_NOT_PUBLIC)))


async def resolve_by_system(host: str, port: int) -> list[str]:
    """All addresses of a name, as the machine's resolver gives them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


def parse_networks(text: str) -> tuple[Network, ...]:
    """From CIDR blocks with commas between. Raises ValueError."""
    return tuple(ipaddress.ip_network(each.strip()) for each in text.split(",") if each.strip())


async def pin_address(host: str, port: int, resolve: Resolver, allowed: Iterable[Network]) -> str:
    """The one address to connect to. Raises ImportFailure `import_address_forbidden`."""
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            found = await resolve(host, port)
        addresses = [_final(ipaddress.ip_address(each)) for each in found]
    except (OSError, TimeoutError, ValueError) as error:
        raise source_failed(f"'{host}' cannot be resolved.") from error
    if not addresses:
        raise source_failed(f"'{host}' cannot be resolved.")
    networks = tuple(allowed)
    if not all(is_reachable(address, networks) for address in addresses):
        raise ImportFailure("import_address_forbidden", f"'{host}' is not on the public internet.")
    # IPv4 first: many clusters have no way out by IPv6, and hear of such addresses all the same.
    return str(min(addresses, key=lambda address: address.version))


def is_reachable(address: Address, allowed: Iterable[Network]) -> bool:
    if any(address in network for network in allowed):
        return True
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in _FORBIDDEN)
    )


def _final(address: Address) -> Address:
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped
