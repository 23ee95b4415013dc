"""Evaluation: calibration, code in a sandbox, translation.

`generate` makes text, `calibration` compares distributions, `code` and `multipl_e` read problems whose answers are
programs, `sandbox` and `checker` run these, `pass_at_k` and `translation` turn outcomes into numbers, `score` and `run`
are the commands.
"""
