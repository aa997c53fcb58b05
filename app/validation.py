"""What pydantic finds in bodies that no route has declared: in a form's fields, in a batch's lines.

Knows nothing of what the bodies are for. Invariant: a finding reads as a route's own would.
"""

from __future__ import annotations

from pydantic import ValidationError

from app.error_handlers import from_validation
from app.errors import BadRequestError


def request_error(error: ValidationError) -> BadRequestError:
    """The answer to a body that a model refused."""
    return from_validation([{**each, "loc": ("body", *each["loc"])} for each in error.errors()])
