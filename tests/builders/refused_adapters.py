"""What is refused, and under which code: fields of a configuration, and tensors in a file.

Each row changes one thing of an adapter that is accepted otherwise.
"""

from __future__ import annotations

from lora.base_spec import MODULES
from tests.builders.adapters import HEAD

Q0 = f"{HEAD}layers.0.self_attn.q_proj"
# So many whole paths that PEFT condenses them to the ends of names.
PATHS = [f"model.layers.{layer}.{module}" for layer in range(3) for module in MODULES]

# The changed fields, the code, and the field that is blamed.
REFUSED_FIELDS: list[tuple[dict[str, object], str, str | None]] = [
    # C6, C7: ranks and scales
    ({"r": 0}, "rank_invalid", "r"),
    ({"r": -1}, "rank_invalid", "r"),
    ({"r": 8.0}, "rank_invalid", "r"),
    ({"r": "8"}, "rank_invalid", "r"),
    ({"r": True}, "rank_invalid", "r"),
    ({"r": None}, "rank_invalid", "r"),
    ({"rank_pattern": {"v_proj": 0}}, "rank_invalid", "rank_pattern.v_proj"),
    ({"r": 1025}, "rank_too_large", "r"),
    ({"rank_pattern": {"v_proj": 1025}}, "rank_too_large", "rank_pattern.v_proj"),
    ({"lora_alpha": "16"}, "scaling_invalid", "lora_alpha"),
    ({"lora_alpha": True}, "scaling_invalid", "lora_alpha"),
    ({"lora_alpha": None}, "scaling_invalid", "lora_alpha"),
    ({"alpha_pattern": {"v_proj": [1]}}, "scaling_invalid", "alpha_pattern.v_proj"),
    ({"lora_alpha": 80_001}, "scaling_invalid", None),
    ({"lora_alpha": -80_001}, "scaling_invalid", None),
    ({"lora_alpha": 1e300}, "scaling_invalid", None),
    ({"alpha_pattern": {"v_proj": 1e9}}, "scaling_invalid", None),
    # C10, C11: variants that look like plain LoRA in the file
    ({"use_dora": True, "lora_bias": True}, "variant_unsupported", "lora_bias"),
    ({"use_dora": 1}, "config_schema_invalid", "use_dora"),
    ({"use_qalora": True}, "variant_unsupported", "use_qalora"),
    ({"use_bdlora": {"nblocks": 2}}, "variant_unsupported", "use_bdlora"),
    ({"alora_invocation_tokens": [5]}, "variant_unsupported", "alora_invocation_tokens"),
    ({"arrow_config": {"top_k": 3}}, "variant_unsupported", "arrow_config"),
    ({"monteclora_config": {"num_samples": 8}}, "variant_unsupported", "monteclora_config"),
    ({"kasa_config": {"beta": 1e-4}}, "variant_unsupported", "kasa_config"),
    ({"kasa_config": {}}, "variant_unsupported", "kasa_config"),
    ({"kasa_config": False}, "variant_unsupported", "kasa_config"),
    ({"use_bdlora": False}, "variant_unsupported", "use_bdlora"),
    ({"arrow_config": {}}, "variant_unsupported", "arrow_config"),
    ({"use_bdlora": {}}, "variant_unsupported", "use_bdlora"),
    ({"alora_invocation_tokens": []}, "variant_unsupported", "alora_invocation_tokens"),
    # C12: initialisations that changed the base
    ({"loftq_config": {"loftq_bits": 4}}, "init_mutates_base", "loftq_config"),
    # C13 to C18
    ({"lora_bias": "yes"}, "config_schema_invalid", "lora_bias"),
    ({"bias": "some"}, "config_schema_invalid", "bias"),
    ({"modules_to_save": ["score"]}, "modules_to_save_unsupported", "score"),
    ({"modules_to_save": ["lm_head", "mlp"]}, "modules_to_save_unsupported", "mlp"),
    ({"modules_to_save": ["proj"]}, "modules_to_save_unsupported", "proj"),
    ({"modules_to_save": ["down_proj"]}, "modules_to_save_unsupported", "down_proj"),
    ({"modules_to_save": ["model"]}, "modules_to_save_unsupported", "model"),
    ({"modules_to_save": [".*"]}, "modules_to_save_unsupported", ".*"),
    ({"modules_to_save": [""]}, "modules_to_save_unsupported", ""),
    ({"modules_to_save": "lm_head"}, "config_schema_invalid", "modules_to_save"),
    ({"modules_to_save": [7]}, "config_schema_invalid", "modules_to_save"),
    ({"trainable_token_indices": [5, 5]}, "config_schema_invalid", "trainable_token_indices"),
    ({"trainable_token_indices": [-1]}, "config_schema_invalid", "trainable_token_indices"),
    ({"trainable_token_indices": [True]}, "config_schema_invalid", "trainable_token_indices"),
    ({"trainable_token_indices": 5}, "config_schema_invalid", "trainable_token_indices"),
    (
        {"trainable_token_indices": {"q_proj": [5]}},
        "trainable_tokens_unsupported",
        "q_proj",
    ),
    (
        {"trainable_token_indices": [128]},
        "vocab_resized_unsupported",
        "trainable_token_indices",
    ),
    ({"ensure_weight_tying": "yes"}, "config_schema_invalid", "ensure_weight_tying"),
    ({"layer_replication": [[0, 2]]}, "layer_replication_unsupported", "layer_replication"),
    ({"target_parameters": ["experts.down"]}, "target_unknown", "target_parameters"),
    ({"target_parameters": ""}, "target_unknown", "target_parameters"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out_mismatch", "fan_in_fan_out"),
    # C22, C23: targets
    ({"target_modules": ["Wqkv"]}, "target_unknown", "Wqkv"),
    ({"target_modules": ["qkv_proj", "q_proj", "v_proj"]}, "target_unknown", "qkv_proj"),
    ({"target_modules": ["proj"]}, "target_unknown", "proj"),
    ({"target_modules": []}, "target_unknown", "target_modules"),
    ({"target_modules": ""}, "target_unknown", "target_modules"),
    ({"target_modules": ["self_attn"]}, "target_unsupported", "self_attn"),
    ({"target_modules": ["q_proj", "v_proj", "0"]}, "target_unsupported", "0"),
    ({"target_modules": r".*\.c_attn"}, "target_unknown", "target_modules"),
    ({"target_modules": "q_proj"}, "target_unknown", "target_modules"),
    ({"target_modules": ["q_proj", "v_proj", "norm"]}, "target_unsupported", "norm"),
    ({"target_modules": r".*[qv]_proj|.*\.norm"}, "target_unsupported", "model.norm"),
    ({"target_modules": r".*[qv]_proj|.*mlp"}, "target_unsupported", "model.layers.0.mlp"),
    ({"target_modules": r".*[qv]_proj|.*\.2"}, "target_unsupported", "model.layers.2"),
    ({"target_modules": r".*[qv]_proj|.*_emb"}, "target_unsupported", "model.rotary_emb"),
    ({"target_modules": r".*[qv]_proj|model"}, "target_unsupported", "model"),
    ({"exclude_modules": ["q_proj", "v_proj"]}, "target_unknown", "target_modules"),
    ({"layers_to_transform": [3]}, "layer_out_of_range", "3"),
    ({"layers_to_transform": -1}, "layer_out_of_range", "-1"),
    (
        {"target_modules": PATHS, "layers_to_transform": [0]},
        "target_unsupported",
        "model.layers.0.mlp.down_proj",
    ),
    # wrong types
    ({"target_modules": 7}, "config_schema_invalid", "target_modules"),
    ({"target_modules": ["q_proj", 7]}, "config_schema_invalid", "target_modules"),
    ({"exclude_modules": {"a": 1}}, "config_schema_invalid", "exclude_modules"),
    ({"layers_to_transform": ["0"]}, "config_schema_invalid", "layers_to_transform"),
    ({"layers_to_transform": [True]}, "config_schema_invalid", "layers_to_transform"),
    ({"layers_to_transform": False}, "config_schema_invalid", "layers_to_transform"),
    ({"layers_to_transform": ""}, "config_schema_invalid", "layers_to_transform"),
    ({"layers_to_transform": {}}, "config_schema_invalid", "layers_to_transform"),
    ({"layers_pattern": "layers"}, "config_schema_invalid", "layers_pattern"),
    (
        {"target_modules": ".*[qv]_proj", "layers_to_transform": [0]},
        "config_schema_invalid",
        "layers_to_transform",
    ),
    (
        {"target_modules": ".*[qv]_proj", "layers_to_transform": []},
        "config_schema_invalid",
        "layers_to_transform",
    ),
    (
        {"target_modules": ".*[qv]_proj", "layers_pattern": ""},
        "config_schema_invalid",
        "layers_pattern",
    ),
    ({"rank_pattern": ["q_proj"]}, "config_schema_invalid", "rank_pattern"),
    ({"rank_pattern": None}, "config_schema_invalid", "rank_pattern"),
    ({"alpha_pattern": None}, "config_schema_invalid", "alpha_pattern"),
    ({"eva_config": []}, "config_schema_invalid", "eva_config"),
    ({"velora_config": True}, "config_schema_invalid", "velora_config"),
    ({"corda_config": False}, "config_schema_invalid", "corda_config"),
    ({"lora_ga_config": ""}, "config_schema_invalid", "lora_ga_config"),
    ({"use_rslora": "yes"}, "config_schema_invalid", "use_rslora"),
    ({"auto_mapping": "x"}, "config_schema_invalid", "auto_mapping"),
    ({"base_model_name_or_path": 7}, "config_schema_invalid", "base_model_name_or_path"),
    # C25, C26: fields that name code to import
    ({"megatron_config": {"a": 1}}, "config_key_forbidden", "megatron_config"),
    ({"megatron_core": "os"}, "config_key_forbidden", "megatron_core"),
    (
        {"auto_mapping": {"parent_library": "os", "base_model_class": "system"}},
        "config_key_forbidden",
        "auto_mapping.parent_library",
    ),
    (
        {"auto_mapping": {"parent_library": "transformers_evil.x"}},
        "config_key_forbidden",
        "auto_mapping.parent_library",
    ),
    (
        {"auto_mapping": {"parent_library": 7}},
        "config_key_forbidden",
        "auto_mapping.parent_library",
    ),
    # C27: what a later PEFT may add
    ({"use_next_year": True}, "config_unknown_key", "use_next_year"),
    ({"next_config": {"a": 1}}, "config_unknown_key", "next_config"),
    ({"next_number": 0}, "config_unknown_key", "next_number"),
    # C29: names are compared and never followed
    ({"base_model_name_or_path": "x" * 1_000_000}, "config_json_invalid", None),
    ({"base_model_name_or_path": "x" * 1025}, "config_schema_invalid", "base_model_name_or_path"),
    # C30: MLX, and half MLX
    ({"lora_parameters": {"rank": 8, "scale": 20.0}}, "format_mlx_unsupported", "peft_type"),
    ({"fine_tune_type": "lora"}, "format_mlx_unsupported", "lora_parameters"),
]


OTHER_METHODS = (
    *("IA3", "LOHA", "LOKR", "OFT", "BOFT", "ADALORA", "VERA", "MISS", "RANDLORA", "XLORA"),
    *("PREFIX_TUNING", "P_TUNING", "PROMPT_TUNING", "lora", None, ["LORA"]),
)
OTHER_TASKS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION", "SEQ_2_SEQ_LM")
OTHER_STARTS = ("pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq", "lora_ga", "x", 1)

# A tensor beside the plain adapter's: its name, its shape, and the code.
REFUSED_TENSORS: list[tuple[str, tuple[int, ...], str]] = [
    (f"{Q0}.lora_magnitude_vector", (64,), "tensor_unexpected"),
    (f"{Q0}.lora_magnitude_vector.weight", (64,), "tensor_unexpected"),
    (f"{Q0}.lora_diag", (8,), "variant_unsupported"),
    (f"{Q0}.lora_B.bias", (64,), "tensor_unexpected"),
    (f"{Q0}.base_layer.bias", (64,), "bias_unsupported"),
    (f"{HEAD}layers.0.self_attn.k_proj.bias", (32,), "bias_unsupported"),
    (f"{HEAD}embed_tokens.lora_embedding_A", (8, 128), "tensor_pair_incomplete"),
    (f"{HEAD}embed_tokens.lora_embedding_B", (64, 8), "tensor_pair_incomplete"),
    (f"{Q0}.lora_embedding_A", (8, 64), "target_unsupported"),
    (f"{HEAD}embed_tokens.lora_embedding_A", (8, 133), "vocab_resized_unsupported"),
    ("base_model.model.lm_head.lora_B.weight", (192, 8), "vocab_resized_unsupported"),
    (f"{HEAD}embed_tokens.base_layer.weight", (128, 64), "tensor_unexpected"),
    (f"{HEAD}embed_tokens.base_layer.weight", (133, 64), "vocab_resized_unsupported"),
    (f"{HEAD}norm.weight", (64,), "modules_to_save_unsupported"),
    (f"{HEAD}layers.0.input_layernorm.weight", (64,), "modules_to_save_unsupported"),
    ("base_model.model.score.modules_to_save.weight", (2, 64), "modules_to_save_unsupported"),
    (f"{HEAD}embed_tokens.weight", (133, 64), "vocab_resized_unsupported"),
    ("base_model.model.lm_head.weight", (192, 64), "vocab_resized_unsupported"),
    (
        f"{HEAD}embed_tokens.token_adapter.trainable_tokens_delta",
        (2, 64),
        "trainable_tokens_unsupported",
    ),
    (f"{Q0}.base_layer.weight", (64, 64), "tensor_unexpected"),
    (f"{Q0}.weight", (64, 64), "tensor_unexpected"),
    (f"{Q0}.lora_A", (8, 64), "tensor_unexpected"),
    (f"{Q0}.ia3_l", (64,), "tensor_unexpected"),
    ("score.weight", (2, 64), "tensor_unexpected"),
    ("optimizer", (1,), "tensor_unexpected"),
    ("module", (1,), "tensor_unexpected"),
    ("base_model.model", (1,), "tensor_unexpected"),
    ("model.layers.0.self_attn.q_proj.lora_a", (64, 8), "format_mlx_unsupported"),
    ("lora_unet_x.lora_down.weight", (8, 64), "format_kohya_unsupported"),
    ("lora_te1_text_model.alpha", (1,), "format_kohya_unsupported"),
]
