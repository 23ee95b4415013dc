"""Energy-Based Fine-Tuning of language models.

The public names below are imported when they are first used, so that `import ebft` is quick.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ebft.version import __version__ as __version__

# torch reads both when it is imported. Its threads spin only briefly while they wait for each other: on a CPU that does
# something else as well, the default is ten times slower. And rollouts differ in size from step to step, which in
# segments of fixed size leaves a third of a GPU's memory unusable.
TORCH_WAS_FIRST = "torch" in sys.modules and "GOMP_SPINCOUNT" not in os.environ
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

if TYPE_CHECKING:
    from ebft.config.training import EBFTConfig
    from ebft.method.layout import PackedLayout, StridedLayout
    from ebft.method.losses import ebft_loss
    from ebft.method.rewards import (
        conditional_feature_matching_loss,
        feature_matching_rewards,
        leave_one_out_advantages,
        token_groups,
    )
    from ebft.model.backbone import output_head, packed_hidden_states
    from ebft.model.features import FeatureNetwork
    from ebft.model.rollout import rollout
    from ebft.train.trainer import EBFTTrainer

__all__ = ["EBFTConfig", "EBFTTrainer", "FeatureNetwork", "PackedLayout", "StridedLayout", "__version__", "ebft_loss"]
__all__ += ["conditional_feature_matching_loss", "feature_matching_rewards", "leave_one_out_advantages"]
__all__ += ["output_head", "packed_hidden_states", "rollout", "token_groups"]
_HOME = {"EBFTConfig": "config.training", "EBFTTrainer": "train.trainer", "FeatureNetwork": "model.features"}
_HOME |= {"PackedLayout": "method.layout", "StridedLayout": "method.layout", "ebft_loss": "method.losses"}
_HOME |= {"output_head": "model.backbone", "packed_hidden_states": "model.backbone", "rollout": "model.rollout"}


def __getattr__(name: str) -> object:
    if name in __all__:  # the others are of the method's rewards
        return getattr(import_module(f"ebft.{_HOME.get(name, 'method.rewards')}"), name)
    raise AttributeError(f"module 'ebft' has no attribute {name!r}")
