"""Whether a tenant may have one more request in flight, or is told which limit it reached."""

from app.admission.service import Admission

__all__ = ["Admission"]
