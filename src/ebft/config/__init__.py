"""Every setting, once: its type, default, help text and checks.

`settings` says how one is declared, read and offered as a flag; `method`, `data`, `training`, `baselines` and
`evaluation` declare them; `recipe` reads YAML and flags. Only `training` and `baselines` import transformers.
"""
