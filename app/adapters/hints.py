"""What an adapter's author can do about a finding, by its code. Data only.

Knows nothing of where findings come from. Invariant: a hint is about its code and never about one
adapter, so that it may be shown to anybody.
"""

from __future__ import annotations

_AS_SAFETENSORS = "Save it with model.save_pretrained(folder, safe_serialization=True)."
_SAVE_AGAIN = "Save the adapter again; the file was cut off or changed on its way."

HINTS = {
    "pickle_not_allowed": _AS_SAFETENSORS,
    "archive_not_supported": "Send the adapter's files, unpacked.",
    "format_unsupported": _AS_SAFETENSORS,
    "format_gguf_unsupported": "Send the PEFT adapter that the GGUF file was made from.",
    "format_lfs_pointer": "Run `git lfs pull` where the files come from.",
    "format_kohya_unsupported": "Convert it to PEFT's format.",
    "safetensors_truncated": _SAVE_AGAIN,
    "safetensors_header_length": _SAVE_AGAIN,
    "safetensors_length_mismatch": _SAVE_AGAIN,
    "safetensors_offsets_invalid": _SAVE_AGAIN,
    "tensor_nonfinite": "Train it with a lower learning rate, or in bfloat16 or float32.",
    "dtype_overflow": "Train it with a lower learning rate, and look at the largest numbers in it.",
    "dtype_unsupported": "Save it as float32, float16 or bfloat16.",
    "config_missing": "Send adapter_config.json beside adapter_model.safetensors.",
    "rank_too_large": "Train it with a lower r.",
    "scaling_invalid": "Set lora_alpha to a number near r.",
    "peft_type_unsupported": "Only LoRA is served: train it with peft.LoraConfig.",
    "task_type_unsupported": 'Train it with task_type="CAUSAL_LM".',
    "init_mutates_base": (
        "Convert it: save_pretrained(folder, path_initial_model_for_weight_conversion=...)."
    ),
    "modules_to_save_not_allowed": "Train without modules_to_save, or ask for a larger plan.",
    "layer_replication_unsupported": "Train it on the base as it is, without layer_replication.",
    "target_unknown": "Compare target_modules with the names of the served base's modules.",
    "vocab_resized_unsupported": "Train it without adding tokens to the tokenizer.",
    "base_model_mismatch": "Train it on the base that is served here.",
    "shape_mismatch": "Train it on the base that is served here; shards must be put together.",
    "full_model_not_adapter": "Send the adapter alone, saved before it was merged.",
    "multiple_adapters": "Save one adapter: save_pretrained(folder, selected_adapters=[name]).",
    "tensor_missing": _SAVE_AGAIN,
    "chat_template_invalid": "Try it with transformers: tokenizer.apply_chat_template(messages).",
    "eval_invalid": 'A line is as of a rollout: {"prompt": "2 + 2 =", "exact": "4"}, for instance.',
    "validation_limits_exceeded": "Send fewer, larger tensors, and shorter patterns.",
    "canary_nonfinite": "Its numbers are too large: train it with a lower learning rate or scale.",
    "base_model_unverified": "Name the base's own id in base_model_name_or_path.",
    "trained_on_quantized_base": "Compare its answers with those of the quantised base.",
    "no_effect": "Check that the training ran, and that the trained adapter was saved.",
}
