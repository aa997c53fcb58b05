"""adapter_config.json as a document: an object of plain JSON, or a finding. Reads no field."""

from __future__ import annotations

from collections.abc import Mapping

from lora.container import is_lfs_pointer
from lora.findings import Findings
from lora.limits import ManifestLimits
from lora.strict_json import DuplicateKeyError, StrictJsonError, read_json

Fields = Mapping[str, object]


def read_document(data: bytes, limits: ManifestLimits, findings: Findings) -> Fields | None:
    """The fields of the file; None where it is none."""
    if is_lfs_pointer(data):
        findings.refuse("format_lfs_pointer", "the configuration is a git-lfs pointer")
        return None
    try:
        document = read_json(data, limits.max_config_bytes)
    except DuplicateKeyError as error:
        findings.refuse("config_duplicate_key", "a field is named twice", param=error.key)
        return None
    except StrictJsonError as error:
        findings.refuse("config_json_invalid", str(error))
        return None
    if not isinstance(document, dict):
        findings.refuse("config_schema_invalid", "the configuration is not an object")
        return None
    return document
