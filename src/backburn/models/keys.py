"""The keys of published ``config.json`` and ``generation_config.json`` files that do not change what a model computes.

Keys that do are the fields of configurations and their ``SUPPORTED``; unlisted keys cause a warning.
"""

from __future__ import annotations

from typing import Any

#: Keys of ``generation_config.json``, and of older ``config.json`` files: for generating, not for the model.
GENERATION = frozenset(
    {"_from_model_config", "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight",
     "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "cache_config",
     "cache_implementation", "compile_config", "constraints", "continuous_batching_config", "decoder_start_token_id",
     "disable_compile", "diversity_penalty", "do_sample", "dola_layers", "early_stopping",
     "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "eos_token_id", "epsilon_cutoff", "eta_cutoff",
     "exponential_decay_length_penalty", "force_words_ids", "forced_bos_token_id", "forced_decoder_ids",
     "forced_eos_token_id", "guidance_scale", "is_assistant", "length_penalty", "low_memory", "max_cache_len",
     "max_length", "max_matching_ngram_size", "max_new_tokens", "max_time", "min_length", "min_new_tokens", "min_p",
     "no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "num_beam_groups", "num_beams",
     "num_return_sequences", "output_attentions", "output_hidden_states", "output_logits", "output_scores",
     "pad_token_id", "penalty_alpha", "prefill_chunk_size", "prompt_lookup_num_tokens", "remove_invalid_values",
     "renormalize_logits", "repetition_penalty", "return_dict_in_generate", "sep_token_id", "sequence_bias",
     "speculation_type", "stop_strings", "suppress_tokens", "target_lookbehind", "temperature", "token_healing",
     "top_h", "top_k", "top_p", "transformers_version", "typical_p", "use_cache", "use_mtp", "watermarking_config"}
)  # fmt: skip
#: The generation settings that are arguments of ``generate``, or that do not change the tokens.
GENERATION_IDLE = frozenset(
    {"_from_model_config", "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight",
     "assistant_lookbehind", "bos_token_id", "cache_config", "cache_implementation", "compile_config",
     "continuous_batching_config", "decoder_start_token_id", "disable_compile", "do_sample", "eos_token_id",
     "is_assistant", "low_memory", "max_cache_len", "max_length", "max_matching_ngram_size", "max_new_tokens",
     "max_time", "min_p", "num_assistant_tokens", "num_assistant_tokens_schedule", "output_attentions",
     "output_hidden_states", "output_logits", "output_scores", "pad_token_id", "prefill_chunk_size",
     "prompt_lookup_num_tokens", "repetition_penalty", "return_dict_in_generate", "speculation_type",
     "target_lookbehind", "temperature", "top_k", "top_p", "transformers_version", "use_cache", "use_mtp",
     # options of methods that other keys choose
     "early_stopping", "length_penalty", "num_beam_groups", "diversity_penalty", "renormalize_logits",
     "remove_invalid_values", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty"}
)  # fmt: skip
#: The values with which the others have no effect.
GENERATION_OFF: tuple[Any, ...] = (None, False, 0, 1, 0.0, 1.0, [], {})

#: Keys that all configurations of transformers may have.
COMMON = GENERATION | {
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
    "_experts_implementation", "_name_or_path", "architectures", "attn_implementation", "auto_map",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "dtype", "finetuning_task", "gradient_checkpointing",
    "id2label", "is_decoder", "label2id", "model_type", "num_labels", "prefix", "problem_type", "return_dict",
    "task_specific_params", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "torch_dtype", "torchscript",
    "use_bfloat16", "use_flash_attention_2", "use_return_dict",
}  # fmt: skip
#: Keys of families: of heads and losses that the models here lack, of older versions, of ways to compute.
LLAMA = MISTRAL = QWEN2 = COMMON | {"original_max_position_embeddings", "pretraining_tp", "rope_parameters"}
GPT2 = COMMON | {
    "n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj",
}  # fmt: skip
VIT = COMMON | {"encoder_stride", "pooler_act", "pooler_output_size"}
BERT = COMMON | {
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type",
}  # fmt: skip
RESNET = COMMON | {"out_features", "out_indices", "stage_names"}
#: Keys of diffusers' U-Nets, including those of the averages that training saves.
UNET = frozenset(
    {"_class_name", "_diffusers_version", "_name_or_path", "decay", "inv_gamma", "min_decay", "num_train_timesteps",
     "optimization_step", "power", "sample_size", "update_after_step", "use_ema_warmup"}
)  # fmt: skip
