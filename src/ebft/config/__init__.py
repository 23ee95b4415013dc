"""Every setting, once: its type, default, help text and checks. Only `training` imports transformers."""
