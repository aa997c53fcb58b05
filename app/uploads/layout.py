"""How the files of an upload are cut into parts.

Pure: knows nothing of what was received. Invariants: the parts of a file, in the order of their
numbers from 1, are the file; all but its last have the same size; what the tenant has already is
not cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.uploads.tables import Upload


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes `offset` to `offset + num_bytes` of the file `path`."""

    path: str
    number: int
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """`locator`: of an adapter of the tenant's that has the same file."""

    path: str
    num_bytes: int
    sha256: str
    locator: str | None
    parts: tuple[Part, ...]


def file_parts(upload: Upload) -> list[DeclaredFile]:
    """The upload's files, with the parts that are to be sent of each."""
    return [
        DeclaredFile(
            path=file["path"],
            num_bytes=file["bytes"],
            sha256=file["sha256"],
            locator=file["locator"],
            parts=()
            if file["locator"] is not None
            else cut(file["path"], file["bytes"], upload.part_bytes),
        )
        for file in upload.files
    ]


def cut(path: str, num_bytes: int, part_bytes: int) -> tuple[Part, ...]:
    return tuple(
        Part(path, number, offset, min(part_bytes, num_bytes - offset))
        for number, offset in enumerate(range(0, num_bytes, part_bytes), start=1)
    )


def find_part(upload: Upload, path: str, number: int) -> Part | None:
    """None where nothing is to be sent there."""
    parts = (part for file in file_parts(upload) for part in file.parts)
    return next((part for part in parts if (part.path, part.number) == (path, number)), None)
