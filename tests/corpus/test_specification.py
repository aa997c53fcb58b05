"""Every row of the specification is a test with its exact code: sent over REST here, or by name.

`SPECIFIED` and `SPECIFIED_CODES` are the specification's own lists: a row that is shown nowhere, or
a code that nothing gives, fails.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.settings import Settings
from lora.findings import REFUSALS, WARNINGS
from tests.builders.operator import Operator, Tenant
from tests.corpus.conftest import Verdict
from tests.corpus.refusal_rows import KNOWN_BASE, ROWS, Row, large_rows
from tests.corpus.refused_uploads import Files, adapter

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
SPECIFIED = (
    *("T1", "T2", "T3", "T5", "T6", "T7", "T8", "T10", "T11", "T12", "T13", "T14"),
    *("P1", "P2", "P3", "P4", "P5", "P8"),
    *("S1", "S2", "S3", "S4", "S5", "S7", "S8", "S9", "S10", "S11", "S14", "S15", "S16", "S17"),
    *("C1", "C2", "C4", "C5", "C7", "C8", "C9", "C10", "C11", "C12", "C13", "C15", "C17", "C18"),
    *("C19", "C21", "C22", "C23", "C25", "C26", "C27", "C28", "C29", "C30", "C31"),
    *("K1", "K3", "K4", "K5", "K6", "K7", "K9", "K12", "K13", "K15", "K16", "K17", "K18", "K19"),
    "K20",
)
PARTS = "corpus/uploads/test_refused_parts.py"
VARIANTS = "corpus/test_accepted.py::test_a_variant_alone_and_among_others"
# Rows that one upload cannot show, or whose answer is that they are served; and what shows them.
ELSEWHERE = {
    "T1": [f"{PARTS}::test_t1_a_part_without_a_length"],
    "T2": [f"{PARTS}::test_t2_a_part_longer_than_any_file_is_refused_unread"],
    "T3": [f"{PARTS}::test_t3_a_body_that_is_not_what_its_header_says"],
    "T5": [f"{PARTS}::test_t5_a_part_that_was_damaged_on_its_way"],
    "T6": [f"{PARTS}::test_t6_a_client_that_trickles"],
    "T7": [f"{PARTS}::test_t7_a_body_that_would_have_to_be_unpacked"],
    "T8": [f"{PARTS}::test_t8_a_form_in_the_place_of_the_bytes"],
    "T10": [
        f"{PARTS}::test_t10_other_files",
        "corpus/templates/test_uploads.py::"
        "test_a_template_that_does_not_do_is_refused_with_its_reason",
    ],
    "T11": [
        f"{PARTS}::test_t11_completing_before_all_is_there_and_sending_after",
        "corpus/uploads/test_uploads.py::"
        "test_of_several_that_complete_at_once_one_makes_the_version",
    ],
    "T12": [f"{PARTS}::test_t12_more_than_the_tenant_may_have"],
    "T13": [f"{PARTS}::test_t13_another_tenants_upload_is_answered_as_nobodys"],
    "T14": [
        "app/adapters/test_adapters_api.py::test_bad_name_gets_422",
        "app/adapters/test_adapters_api.py::test_name_is_unique_within_a_tenant_only",
    ],
    "C10": [VARIANTS],
    "C13": [VARIANTS],
    "C15": [
        VARIANTS,
        "corpus/validation/test_dry_run.py::"
        "test_a_plan_says_how_many_bytes_may_replace_the_base_and_a_tenant_may_differ",
    ],
    "C23": [
        VARIANTS,
        "lora/test_base_copies.py::test_one_number_that_differs_is_another_base",
    ],
    "C30": ["corpus/test_accepted.py::test_an_mlx_variant"],
    "K16": [
        "corpus/validation/test_certificates.py::"
        "test_an_adapter_that_no_engine_has_room_for_is_refused_at_its_trial",
    ],
    "K18": [  # its other half: a warning, in `ROWS`
        "corpus/test_specification.py::"
        "test_k18_where_warnings_refuse_it_is_refused_and_leaves_nothing"
    ],
    "K19": [
        "corpus/validation/test_certificates.py::test_numbers_that_drown_the_model_are_refused"
    ],
    "K20": [
        "corpus/validation/test_certificates.py::test_every_module_is_served_as_its_merge",
        "corpus/validation/test_certificates.py::test_control_a_wrong_scale_is_far_from_its_merge",
    ],
}
SPECIFIED_CODES = (
    *("adapter_corrupt", "adapter_empty", "adapter_too_large", "archive_not_supported"),
    *("base_model_mismatch", "base_model_unverified", "bias_unsupported", "canary_nonfinite"),
    *("config_duplicate_key", "config_json_invalid", "config_key_forbidden", "config_missing"),
    *("config_schema_invalid", "config_unknown_key", "content_encoding_unsupported"),
    *("digest_mismatch", "dtype_overflow", "dtype_unsupported", "fan_in_fan_out_mismatch"),
    *("file_not_allowed", "file_too_large", "format_gguf_unsupported", "format_kohya_unsupported"),
    *("format_lfs_pointer", "format_mlx_unsupported", "format_unsupported"),
    *("full_model_not_adapter", "idempotency_mismatch", "init_check_conversion"),
    *("init_mutates_base", "keys_remapped", "layer_out_of_range", "layer_replication_unsupported"),
    *("length_mismatch", "length_required", "modules_to_save_unsupported", "multipart_unsupported"),
    *("multiple_adapters", "name_conflict", "name_invalid", "no_effect", "not_found"),
    *("pattern_unsupported", "peft_type_unsupported", "pickle_not_allowed", "quota_exceeded"),
    *("rank_invalid", "rank_mismatch", "rank_too_large", "safetensors_dtype_unknown"),
    *("safetensors_duplicate_key", "safetensors_header_invalid", "safetensors_header_length"),
    *("safetensors_header_too_large", "safetensors_length_mismatch", "safetensors_offsets_invalid"),
    *("safetensors_size_mismatch", "safetensors_truncated", "scaling_invalid", "shape_mismatch"),
    *("sharded_adapter_unsupported", "storage_full", "target_unknown", "target_unsupported"),
    *("task_type_unsupported", "tensor_duplicate", "tensor_empty", "tensor_missing"),
    *("tensor_name_invalid", "tensor_nonfinite", "tensor_pair_incomplete", "tensor_unexpected"),
    *("too_many_tensors", "trainable_tokens_unsupported", "trained_on_quantized_base"),
    *("upload_already_completed", "upload_incomplete", "upload_too_slow", "variant_unsupported"),
    "vocab_resized_unsupported",
)
# Of the specification's list: those that another code stands for here, and why.
OTHERWISE = {"target_parameters_unsupported": "a base without experts: `target_unknown` (C18)"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"known_bases": KNOWN_BASE})


async def answer_to(operator: Operator, files: Files) -> tuple[int, str | None]:
    """Status and code; of what is accepted, the code that the worker's check gives."""
    response = await operator.upload("acme", "bot", files)
    body: dict[str, Any] = response.json()
    if response.status_code != 201:
        code = body["error"]["code"]
        checks = body["error"].get("report", {}).get("checks")
        assert checks is None or code in {check["rule"] for check in checks}
        return response.status_code, code
    await operator.run_jobs()
    path = f"/tenants/acme/adapters/bot/versions/{body['version']}"
    version = await operator.done("GET", path)
    rules = [check["rule"] for check in version["report"]["checks"]]
    refusals = [rule for rule in rules if rule in REFUSALS]
    assert version["state"] == ("rejected" if refusals else "active")
    return 201, next(iter([*refusals, *rules]), None)


async def wrongs(operator: Operator, rows: tuple[Row, ...], verdict: Verdict) -> list[str]:
    """Uploads that are not answered as their row says."""
    found = []
    for row in rows:
        for number, files in enumerate(row.uploads):
            answer = await answer_to(operator, files)
            is_right = answer == (row.status, row.code)
            if row.status != 201 or row.code in REFUSALS:
                verdict("refused as expected", is_right)
            if not is_right:
                found.append(f"{row.name}, upload {number}: {answer}")
    return found


@pytest.mark.timeout(300)
async def test_every_row_is_answered_with_its_exact_code_and_leaves_nothing(
    operator: Operator, acme: Tenant, settings: Settings, verdict: Verdict
) -> None:
    assert await wrongs(operator, (*ROWS, *large_rows()), verdict) == []
    assert list((settings.data_dir / "uploads").iterdir()) == []
    assert list((Path(settings.adapter_store) / ".staging").iterdir()) == []
    assert await answer_to(operator, adapter()) == (201, None)


async def test_control_another_answer_than_the_rows_is_wrong(
    operator: Operator, acme: Tenant
) -> None:
    rows = (
        Row("accepted", 422, "config_missing", (adapter(),)),
        Row("otherwise", 422, "rank_invalid", (adapter(use_qalora=True),)),
        Row("silent", 201, "no_effect", (adapter(lora_alpha=4),)),
    )
    assert await wrongs(operator, rows, lambda kind, is_right: None) == [
        "accepted, upload 0: (201, None)",
        "otherwise, upload 0: (422, 'variant_unsupported')",
        "silent, upload 0: (201, None)",
    ]


async def test_k18_where_warnings_refuse_it_is_refused_and_leaves_nothing(
    operator: Operator, acme: Tenant, settings: Settings, verdict: Verdict
) -> None:
    """Its other half, that it is accepted with the warning otherwise, is in `ROWS`."""
    (row,) = [each for each in ROWS if each.name == "K18"]
    for files in row.uploads:
        response = await operator.upload("acme", "bot", files, strict=True)
        error = response.json()["error"]
        verdict("refused as expected", (response.status_code, error["code"]) == (422, "no_effect"))
        assert (response.status_code, error["code"]) == (422, "no_effect")
        assert [(each["rule"], each["severity"]) for each in error["report"]["checks"]] == [
            ("no_effect", "error")
        ]
    assert list((settings.data_dir / "uploads").iterdir()) == []
    assert (await operator.done("GET", "/tenants/acme/adapters/bot/versions"))["data"] == []
    # Controls: what warns of nothing is accepted all the same, and so is this one without the word.
    assert (await operator.upload("acme", "bot", adapter(), strict=True)).status_code == 201
    assert await answer_to(operator, row.uploads[0]) == (201, "no_effect")


def test_no_row_of_the_specification_is_missing() -> None:
    rows = (*ROWS, *large_rows())
    shown = {row.name for row in rows if row.uploads}
    assert sorted(shown | ELSEWHERE.keys()) == sorted(SPECIFIED)
    assert all(row.code is None or row.code in _codes() for row in rows)


def test_what_shows_a_row_elsewhere_is_there() -> None:
    for test in sorted({test for row in ELSEWHERE.values() for test in row}):
        path, name = test.split("::")
        defined = rf"^(async )?def {name}\("
        assert re.search(defined, (TESTS / path).read_text(), re.MULTILINE), test


def test_every_code_of_the_specification_is_documented_and_given_by_a_test() -> None:
    pages = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    own = Path(__file__).name
    tests = "\n".join(file.read_text() for file in TESTS.rglob("*.py") if file.name != own)
    assert [code for code in SPECIFIED_CODES if f"`{code}`" not in pages] == []
    assert [code for code in SPECIFIED_CODES if f'"{code}"' not in tests] == []
    assert not OTHERWISE.keys() & {*SPECIFIED_CODES, *REFUSALS, *WARNINGS}


def test_every_published_configuration_of_the_specification_has_an_answer() -> None:
    rows = json.loads((TESTS / "lora" / "data" / "adapter_configs.json").read_text())
    numbers = (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28)
    assert [row["id"] for row in rows] == [f"R{number:02}" for number in numbers]


def _codes() -> set[str]:
    """What a row may be answered: codes of the specification, which are those of the tables."""
    return {*SPECIFIED_CODES, *REFUSALS, *WARNINGS}
