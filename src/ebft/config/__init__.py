"""Every setting, once: its type, default and help text.

`method` holds the settings of the method, which training, baselines, evaluation and sweeps share; `model_and_data` what
is trained on what; `running` how a run behaves; `defaults` what ebft sets of transformers' settings; `training`,
`baseline_settings` and `evaluation` put them together for the commands; `recipe` reads YAML and flags, and `shipped`
finds the recipes of the package. Only `training` and `baseline_settings` import transformers: a mistake in a recipe
shows before that.
"""
