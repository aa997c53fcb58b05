"""Why an import did not come about.

Knows nothing of HTTP answers: an import fails long after its request was answered. Invariant: codes
are API, and messages hold nothing that the source said but its status, and no token.
"""

from __future__ import annotations


class ImportFailure(Exception):
    """`is_temporary`: it may go better at another time."""

    def __init__(self, code: str, message: str, *, is_temporary: bool = False) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.is_temporary = is_temporary


def not_allowed(what: str) -> ImportFailure:
    return ImportFailure("import_source_not_allowed", f"Imports from {what} are not allowed.")


def source_failed(message: str) -> ImportFailure:
    return ImportFailure("import_source_failed", message, is_temporary=True)


def not_found(name: str) -> ImportFailure:
    return ImportFailure("import_source_not_found", f"The source has no {name}.")


def too_large(name: str, max_bytes: int) -> ImportFailure:
    return ImportFailure("file_too_large", f"'{name}' exceeds the limit of {max_bytes} bytes.")
