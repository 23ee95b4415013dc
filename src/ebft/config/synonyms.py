"""What settings are called elsewhere (TRL, axolotl, unsloth, lm-evaluation-harness): for suggestions, not aliases."""

from __future__ import annotations

from collections.abc import Collection

from ebft.errors import nearest

# The first of the names that the command knows is the one that is meant.
_MEANT: dict[str, tuple[str, ...]] = {
    "per_device_train_batch_size": (
        "batch_size",
        "train_batch_size",
        "per_device_batch_size",
        "micro_batch_size",
        "bs",
    ),
    "gradient_accumulation_steps": ("grad_accum", "grad_accumulation", "gradient_accumulation", "accumulation_steps"),
    "learning_rate": ("lr",),
    "lr_scheduler_type": ("lr_scheduler", "scheduler", "schedule"),
    "warmup_steps": ("warmup_ratio", "warmup"),
    "num_train_epochs": ("epochs", "epoch", "num_epochs", "n_epochs"),
    "max_steps": ("steps", "num_steps", "train_steps", "total_steps"),
    "max_grad_norm": ("grad_clip", "gradient_clipping", "clip"),
    "optim": ("optimizer", "optimiser"),
    "weight_decay": ("wd",),
    "max_new_tokens": ("max_completion_length", "max_tokens", "max_gen_toks", "max_length"),
    "max_length": ("max_seq_length", "max_seq_len", "sequence_len", "seq_len", "seq_length", "cutoff_len"),
    "context_length": ("max_seq_length", "max_seq_len", "sequence_len", "seq_len", "block_size", "max_length"),
    "horizon": ("max_completion_length", "max_new_tokens", "completion_length", "rollout_length"),
    "max_prompt_tokens": ("max_prompt_length",),
    "generations": ("num_generations", "num_samples", "n", "samples_per_prompt"),
    "samples": ("num_generations", "generations", "num_samples", "n", "samples_per_prompt"),
    "kl_coefficient": ("beta", "kl_coef", "kl_weight"),
    "kl_weight": ("beta", "kl_coef", "kl_coefficient"),
    "rewards": ("reward_funcs", "reward_functions", "reward"),
    "model": ("base_model", "model_name", "model_name_or_path", "model_path", "pretrained", "checkpoint"),
    "dataset": ("data", "dataset_name", "data_path", "train_file", "train_data", "dataset_path"),
    "tasks": ("task",),
    "validation_split": ("val_set_size", "val_split", "eval_split", "test_size"),
    "output_dir": ("output", "out", "out_dir", "output_path", "save_dir"),
    "output": ("output_dir", "output_path", "out", "out_dir"),
    "lora": ("use_lora", "use_peft", "adapter"),
    "lora_r": ("lora_rank", "rank"),
    "load_in_4bit": ("qlora", "use_4bit"),
    "text_column": ("dataset_text_field", "text_field"),
    "messages_column": ("conversations_column", "chat_column"),
    "validation_dataset": ("validation_file", "validation_data", "eval_dataset", "eval_file"),
    "answer_only": ("completion_only_loss", "assistant_only_loss", "train_on_responses_only"),
    "eval_strategy": ("evaluation_strategy",),
    "use_cpu": ("cpu", "no_cuda"),
    "dtype": ("torch_dtype", "precision"),
    "model_dtype": ("torch_dtype", "dtype", "precision"),
    "attention_backend": ("attn_implementation", "attn_impl"),
    "early_stopping_patience": ("early_stopping", "patience"),
    "limit": ("num_examples", "max_samples"),
    "report_to": ("wandb", "use_wandb", "wandb_project", "tensorboard", "log_with"),
    "run_name": ("wandb_run_name", "wandb_name"),
    "save_steps": ("save_every", "checkpoint_every", "save_interval"),
    "eval_steps": ("eval_every", "eval_interval", "evals_per_epoch"),
}

# What is no setting of ours by another name: a setting that the command must know, and what to do.
_INSTEAD: dict[str, tuple[str, str]] = {
    "train_on_inputs": ("answer_only", "answer_only says the opposite: true trains on answers only"),
    "dataset_config": ("dataset", "write it behind the name: dataset=name:configuration"),
    "dataset_config_name": ("dataset", "write it behind the name: dataset=name:configuration"),
    "device": ("use_cpu", "a GPU is used if there is one; use_cpu=true computes on the CPU"),
    "logging_dir": ("report_to", "logs are in output_dir, those of TensorBoard in output_dir/runs"),
    "overwrite_output_dir": (
        "output_dir",
        "a run is never overwritten; choose another folder, or continue it with --resume",
    ),
    "system_prompt": (
        "messages_column",
        'make it the first message of every conversation: {"role": "system", "content": ...}',
    ),
}


def suggestion(name: str, known: Collection[str]) -> str:
    """The end of an error message about an unknown setting, by what it is called elsewhere or by how it is spelt."""
    as_known = {_plain(option): option for option in known}
    for meant, elsewhere in _MEANT.items():
        if _plain(name) in elsewhere and meant in as_known:
            return f"; here it is called {as_known[meant]!r}"
    needs, words = _INSTEAD.get(_plain(name), ("", ""))
    if needs in as_known:
        return f"; {words}"
    return nearest(name, known)


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
