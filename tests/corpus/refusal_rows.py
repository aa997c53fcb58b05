"""The specification's rows of what strangers send: files, and the exact answer to each.

Knows nothing of how files are sent. Rows keep the specification's names; a row may stand here more
than once, where it has more than one answer.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass

import numpy as np

from lora.store import WEIGHTS_FILE
from tests.builders.adapter_files import adapter_config
from tests.builders.adapters import HEAD, StoredTensor, header_of, lora_tensors, renamed, zeros
from tests.builders.refused_adapters import OTHER_METHODS, OTHER_STARTS
from tests.corpus.refused_uploads import (
    A0,
    B0,
    BASE,
    FIRST,
    PICKLE,
    PLAIN,
    RANK,
    SECOND,
    TEXT,
    WHOLE,
    Files,
    adapter,
    also,
    beside,
    configured,
    entry,
    fields,
    headed,
    many_tensors,
    numbered,
    numpy_archive,
    pair,
    spliced,
    tarred,
    weights,
    without_effect,
    zipped,
)

# A base that the operator names, beside the one that is served.
KNOWN_BASE = "meta-llama/Meta-Llama-3-8B"


@dataclass(frozen=True, slots=True)
class Row:
    """Each of `uploads` is answered `status` and `code`.

    Where `status` is 201 the worker's check gives `code`: it refuses, or warns; None: it is silent.
    """

    name: str
    status: int
    code: str | None
    uploads: tuple[Files, ...]


BEGIN, END = header_of(PLAIN)[SECOND]["data_offsets"]
ODD_DTYPES = {"F64": 8.0, "C64": 8.0, "F4": 0.5} | dict.fromkeys(
    ("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1.0
)
WHOLE_MODEL = {
    "model.embed_tokens.weight": zeros((BASE.vocab_size, 64)),
    "model.layers.0.self_attn.q_proj.weight": zeros((64, 64)),
    "model.layers.0.input_layernorm.weight": zeros((64,)),
}
MODEL_WITHOUT_NORMS = {
    name: tensor for name, tensor in WHOLE_MODEL.items() if "layernorm" not in name
}
PATTERNS = ("(?=q)q_proj", r"(q)_\1proj", "q" * 257)

CONTAINERS = (
    Row(
        "T10",
        422,
        "file_not_allowed",
        tuple(map(beside, ("README.md", "tokenizer.json", "Adapter_Config.JSON"))),
    ),
    Row(
        "P1",
        415,
        "pickle_not_allowed",
        (
            beside("adapter_model.bin", zipped("archive/data.pkl")),
            weights(zipped("archive/data.pkl")),
        ),
    ),
    Row("P2", 415, "pickle_not_allowed", (weights(PICKLE), beside("notes.txt", PICKLE))),
    Row("P3", 415, "pickle_not_allowed", tuple(map(beside, ("training_args.bin", "optimizer.pt")))),
    Row(
        "P4",
        415,
        "archive_not_supported",
        (
            *(weights(zipped("checkpoint/adapter_config.json")), weights(tarred())),
            *(weights(gzip.compress(tarred())), weights(b"7z\xbc\xaf\x27\x1c" + bytes(30))),
            beside("adapter.tar.gz"),
        ),
    ),
    Row(
        "P5",
        415,
        "format_unsupported",
        (beside("model.nemo"), beside("adapters.npz"), weights(numpy_archive())),
    ),
    Row(
        "P8",
        422,
        "sharded_adapter_unsupported",
        tuple(
            map(
                beside,
                ("adapter_model-00001-of-00002.safetensors", f"{WEIGHTS_FILE}.index.json"),
            )
        ),
    ),
    Row("S1", 400, "safetensors_truncated", (weights(b""), weights(b"\1" * 7))),
    Row(
        "S2",
        400,
        "safetensors_header_length",
        tuple(
            weights(length.to_bytes(8, "little") + WHOLE[8:])
            for length in (0, 2**64 - 1, len(WHOLE))
        ),
    ),
    Row(
        "S5",
        400,
        "safetensors_header_invalid",
        tuple(map(headed, (b'{"\xff":1}', b"{", b"[]", b" " + TEXT, TEXT + b"x"))),
    ),
    Row(
        "S7",
        400,
        "safetensors_offsets_invalid",
        (
            entry(SECOND, data_offsets=[BEGIN + 4, END + 4]),
            entry(SECOND, data_offsets=[BEGIN - 4, END - 4]),
            entry(SECOND, data_offsets=[END, BEGIN]),
            entry(SECOND, data_offsets=[10**9, 10**9 + END - BEGIN]),
            entry(FIRST, data_offsets=[-4, BEGIN]),
        ),
    ),
    Row(
        "S8",
        400,
        "safetensors_size_mismatch",
        (entry(FIRST, shape=[RANK, 63]), entry(FIRST, shape=[2**62, 4])),
    ),
    Row(
        "S9",
        400,
        "safetensors_length_mismatch",
        (weights(WHOLE[:-1]), weights(WHOLE + zipped("polyglot"))),
    ),
    Row("S10", 400, "safetensors_dtype_unknown", (entry(FIRST, dtype="F128"),)),
    Row(
        "S11",
        400,
        "safetensors_header_invalid",
        (
            entry(FIRST, extra=1),
            headed(b'{"__metadata__":{"a":1}}', b""),
            headed(b'{"__metadata__":{"a":"' + b"x" * (64 << 10) + b'"}}', b""),
        ),
    ),
    Row("S14", 422, "adapter_empty", (headed(b"{}", b""), headed(b'{"__metadata__":{}}', b""))),
    Row("S15", 201, "tensor_nonfinite", tuple(map(numbered, (np.nan, np.inf, -np.inf)))),
    Row("S16", 201, "dtype_overflow", (numbered(65_505.0), numbered(-1e30))),
    Row(
        "S17",
        422,
        "dtype_unsupported",
        tuple(
            adapter({**PLAIN, A0: StoredTensor(dtype, (RANK, 64), bytes(int(size * RANK * 64)))})
            for dtype, size in ODD_DTYPES.items()
        ),
    ),
)

CONFIGURATIONS = (
    Row("C1", 422, "config_missing", ({WEIGHTS_FILE: WHOLE},)),
    Row(
        "C2",
        400,
        "config_json_invalid",
        (
            *map(configured, (b"", b"{", b"\xef\xbb\xbf" + adapter_config(), b"[" * 100_000)),
            configured(adapter_config().decode().encode("utf-16")),
            configured(adapter_config() + b" " * (256 << 10)),
        ),
    ),
    Row(
        "C4",
        400,
        "config_json_invalid",
        tuple(
            spliced(f'"lora_dropout": {value}')
            for value in ("NaN", "-Infinity", "1e999", "9" * 5000)
        ),
    ),
    Row("C5", 422, "config_schema_invalid", (configured(b"[]"), configured(b'"LORA"'))),
    Row("C7", 422, "scaling_invalid", fields("scaling_invalid")),
    Row(
        "C8",
        422,
        "peft_type_unsupported",
        (*(adapter(peft_type=name) for name in OTHER_METHODS), configured(b'{"r": 4}')),
    ),
    Row(
        "C9",
        422,
        "task_type_unsupported",
        tuple(
            adapter(task_type=name)
            for name in ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION")
        ),
    ),
    Row("C11", 422, "variant_unsupported", fields("variant_unsupported")),
    Row(
        "C12",
        422,
        "init_mutates_base",
        (
            *(adapter(init_lora_weights=name) for name in OTHER_STARTS),
            adapter(loftq_config={"loftq_bits": 4}),
        ),
    ),
    Row("C15", 422, "modules_to_save_unsupported", fields("modules_to_save_unsupported")),
    Row(
        "C17",
        422,
        "layer_replication_unsupported",
        (adapter(layer_replication=[[0, 2], [1, 3]]),),
    ),
    Row("C18", 422, "target_unknown", (adapter(target_parameters=["mlp.experts.down_proj"]),)),
    Row("C19", 422, "fan_in_fan_out_mismatch", (adapter(fan_in_fan_out=True),)),
    Row(
        "C21",
        422,
        "pattern_unsupported",
        (
            *(adapter(rank_pattern={pattern: RANK}) for pattern in PATTERNS),
            adapter(alpha_pattern={f"a{number}": 8 for number in range(513)}),
            adapter(target_modules=r".*(?=q)q_proj"),
        ),
    ),
    Row(
        "C22",
        422,
        "target_unknown",
        (adapter(target_modules=["Wqkv"]), adapter(target_modules=["qkv_proj", "v_proj"])),
    ),
    Row(
        "C25",
        422,
        "config_key_forbidden",
        (adapter(megatron_config={"a": 1}), adapter(megatron_core="os")),
    ),
    Row(
        "C26",
        422,
        "config_key_forbidden",
        (adapter(auto_mapping={"parent_library": "os", "base_model_class": "system"}),),
    ),
    Row("C27", 422, "config_unknown_key", fields("config_unknown_key")),
    Row("C28", 422, "base_model_mismatch", (adapter(base_model_name_or_path=KNOWN_BASE),)),
    Row(
        "C28",
        201,
        "base_model_unverified",
        tuple(
            adapter(base_model_name_or_path=name) for name in ("elses/base", "/models/base", None)
        ),
    ),
    Row("C29", 422, "config_schema_invalid", (adapter(base_model_name_or_path="x" * 1025),)),
    Row(
        "C29",
        201,
        "base_model_unverified",
        tuple(
            adapter(base_model_name_or_path=name)
            for name in ("http://169.254.169.254/latest", "/etc/passwd", "https://example.test/x")
        ),
    ),
    Row(
        "C30",
        415,
        "format_mlx_unsupported",
        (adapter(fine_tune_type="lora"), adapter(lora_parameters={"rank": 8, "scale": 20.0})),
    ),
    Row(
        "C31",
        201,
        None,
        (
            *(adapter(revision="main"), adapter(inference_mode=False)),
            *(adapter(peft_version="0.21.2"), adapter(lora_dropout=0.7)),
            adapter(runtime_config={"ephemeral_gpu_offload": True}),
        ),
    ),
)

TENSORS = (
    Row(
        "K1",
        422,
        "tensor_pair_incomplete",
        tuple(
            adapter({name: tensor for name, tensor in PLAIN.items() if name != gone})
            for gone in (A0, B0)
        ),
    ),
    Row(
        "K3",
        422,
        "shape_mismatch",
        (
            *(also({A0: (RANK, 128)}), also({B0: (32, RANK)})),
            also({f"{HEAD}layers.0.self_attn.v_proj.lora_B.weight": (64, RANK)}),
        ),
    ),
    Row(
        "K4",
        415,
        "format_mlx_unsupported",
        (
            also({"model.layers.0.self_attn.q_proj.lora_a": (64, RANK)}),
            adapter(
                {
                    f"model.layers.0.self_attn.q_proj.lora_{side}": zeros((64, 64))
                    for side in ("a", "b")
                },
                r=64,
            ),
        ),
    ),
    Row(
        "K5",
        422,
        "layer_out_of_range",
        tuple(
            adapter(renamed(PLAIN, "layers.2.", f"layers.{index}."))
            for index in ("3", "00", str(2**31))
        ),
    ),
    Row("K6", 422, "full_model_not_adapter", (adapter(WHOLE_MODEL),)),
    Row("K7", 422, "tensor_unexpected", (adapter({**PLAIN, **MODEL_WITHOUT_NORMS}),)),
    Row(
        "K9",
        422,
        "target_unknown",
        (
            pair("base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj"),
            pair("base_model.model.audio_tower.layers.0.self_attn.q_proj"),
        ),
    ),
    Row("K12", 422, "target_unknown", (pair(f"{HEAD}layers.0.mlp.experts.3.gate_proj"),)),
    Row(
        "K13",
        422,
        "tensor_unexpected",
        (adapter(renamed(PLAIN, f"{HEAD}layers.2.", "model.layers.2.")),),
    ),
    Row(
        "K15",
        422,
        "shape_mismatch",
        (also({A0: (RANK,)}), also({A0: (RANK, 64, 1)}), also({B0: (64, RANK, 1, 1)})),
    ),
    Row(
        "K17", 422, "tensor_missing", (adapter(lora_tensors(base=BASE, rank=RANK, layers=[0, 1])),)
    ),
    Row("K18", 201, "no_effect", (adapter(without_effect()),)),
)

ROWS = (*CONTAINERS, *CONFIGURATIONS, *TENSORS)


def large_rows() -> tuple[Row, ...]:
    """Headers of megabytes, made when they are wanted."""
    too_long = (16 << 20) + 1
    return (
        Row(
            "S3",
            413,
            "safetensors_header_too_large",
            (headed(b"\xff" * too_long), headed(TEXT.ljust(too_long))),
        ),
        Row("S4", 413, "too_many_tensors", (headed(many_tensors(200_001), b""),)),
    )
