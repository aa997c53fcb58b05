"""Where adapters may be imported from: how a source is named, and which ones an operator allows.

    hf://org/repo@revision          a repository of the Hugging Face Hub; `main` where none is named
    s3://bucket/prefix              a prefix in a bucket that the worker may read
    gs://bucket/prefix              the same
    https://host[:port]/folder      a folder of a web server

Pure: asks nobody anything. Invariants: a text that is not in this grammar is no source, so that
nothing of it reaches a URL, a path or a shell; an allow-list compares hosts, ports and whole
segments of a path, never text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from app.errors import UnprocessableError, shorten

MAX_SOURCE_CHARS = 1024
HTTPS_PORT = 443

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._=+-]{0,127}"
_PATH = rf"{_SEGMENT}(?:/{_SEGMENT}){{0,15}}"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = rf"(?:{_LABEL}\.){{0,10}}{_LABEL}"
_GRAMMAR = (
    re.compile(
        rf"(?P<scheme>hf)://(?P<host>{_SEGMENT})/(?P<path>{_SEGMENT})(?:@(?P<rev>{_PATH}))?"
    ),
    re.compile(rf"(?P<scheme>s3|gs)://(?P<host>{_HOST})(?:/(?P<path>{_PATH}))?/?"),
    re.compile(
        rf"(?P<scheme>https)://(?P<host>{_HOST})(?P<port>:[0-9]{{1,5}})?/(?P<path>{_PATH})/?"
    ),
)
_PATTERN = re.compile(
    rf"(?P<scheme>hf|s3|gs|https)://(?P<host>\*|(?:\*\.)?{_HOST}|{_SEGMENT})(?P<port>:[0-9]{{1,5}})?"
    rf"(?:/(?P<path>{_PATH}))?/?"
)


@dataclass(frozen=True, slots=True)
class Source:
    """`host`: a web server, a bucket, or an organisation of the Hub, in which `path` lies."""

    scheme: str
    host: str
    path: str = ""
    port: int = HTTPS_PORT
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class AllowList:
    """`sources`: `host` may be `*`, or begin with `*.`, and `path` is the beginning of one."""

    sources: tuple[Source, ...]

    @classmethod
    def parse(cls, text: str) -> AllowList:
        """From patterns with commas between. Raises ValueError for what is none."""
        return cls(tuple(map(_parse_pattern, filter(None, map(str.strip, text.split(","))))))

    def allows(self, source: Source) -> bool:
        return any(_covers(pattern, source) for pattern in self.sources)

    def allows_host(self, host: str, port: int) -> bool:
        """Whether a web server may be asked for anything at all: where a redirect may lead."""
        servers = (pattern for pattern in self.sources if pattern.scheme == "https")
        return any(_is_host(pattern.host, host) and pattern.port == port for pattern in servers)


def parse_source(text: str) -> Source:
    """Raises UnprocessableError `import_source_invalid`."""
    match = next((found for each in _GRAMMAR if (found := each.fullmatch(text))), None)
    if match is None or len(text) > MAX_SOURCE_CHARS:
        raise UnprocessableError(
            f"'{shorten(text, 80)}' is not a source: hf://org/repo@revision, s3://bucket/prefix,"
            " gs://bucket/prefix or https://host/folder, without user, query or fragment.",
            code="import_source_invalid",
            param="source",
        )
    return _source(match)


def _source(match: re.Match[str]) -> Source:
    parts = match.groupdict()
    return Source(
        scheme=parts["scheme"],
        host=parts["host"],
        path=parts["path"] or "",
        port=int(parts["port"][1:]) if parts.get("port") else HTTPS_PORT,
        revision=parts.get("rev"),
    )


def _parse_pattern(text: str) -> Source:
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} allows nothing: hf://*, s3://bucket/prefix or https://host")
    return _source(match)


def _covers(pattern: Source, source: Source) -> bool:
    return (
        pattern.scheme == source.scheme
        and _is_host(pattern.host, source.host)
        and pattern.port == source.port
        and _begins_with(_segments(source.path), _segments(pattern.path))
    )


def _is_host(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return pattern in ("*", host)


def _segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


def _begins_with(path: list[str], beginning: Iterable[str]) -> bool:
    wanted = list(beginning)
    return path[: len(wanted)] == wanted
