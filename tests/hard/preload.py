"""What the processes of `kills.py` are forked from: everything that a command imports."""

import matplotlib.pyplot
import trl

import ebft.baselines.rlvr
import ebft.baselines.sft
import ebft.evaluate.commands
import ebft.studies.commands
import ebft.train.run

__all__ = ["ebft", "matplotlib", "trl"]
