"""Every setting, once: its type, default, help text and checks. Only `training` and `baselines` import transformers."""
