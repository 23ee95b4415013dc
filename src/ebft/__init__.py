"""Energy-Based Fine-Tuning of language models.

The public names below are imported when they are first used, so that `import ebft` is quick.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

from ebft.version import __version__ as __version__

# torch reads both when it is imported. Its threads spin only briefly while they wait for each other: on a CPU that does
# something else as well, the default is ten times slower. And rollouts differ in size from step to step, which in
# segments of fixed size leaves a third of a GPU's memory unusable.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

if TYPE_CHECKING:
    from ebft.config.training import EBFTConfig as EBFTConfig
    from ebft.method.layout import PackedLayout as PackedLayout
    from ebft.method.layout import StridedLayout as StridedLayout
    from ebft.method.losses import ebft_loss as ebft_loss
    from ebft.method.rewards import conditional_feature_matching_loss as conditional_feature_matching_loss
    from ebft.method.rewards import feature_matching_rewards as feature_matching_rewards
    from ebft.method.rewards import leave_one_out_advantages as leave_one_out_advantages
    from ebft.method.rewards import token_groups as token_groups
    from ebft.model.backbone import output_head as output_head
    from ebft.model.backbone import packed_hidden_states as packed_hidden_states
    from ebft.model.features import FeatureNetwork as FeatureNetwork
    from ebft.model.rollout import rollout as rollout
    from ebft.train.trainer import EBFTTrainer as EBFTTrainer


_HOME = {
    "EBFTConfig": "ebft.config.training",
    "EBFTTrainer": "ebft.train.trainer",
    "FeatureNetwork": "ebft.model.features",
    "PackedLayout": "ebft.method.layout",
    "StridedLayout": "ebft.method.layout",
    "conditional_feature_matching_loss": "ebft.method.rewards",
    "ebft_loss": "ebft.method.losses",
    "feature_matching_rewards": "ebft.method.rewards",
    "leave_one_out_advantages": "ebft.method.rewards",
    "output_head": "ebft.model.backbone",
    "packed_hidden_states": "ebft.model.backbone",
    "rollout": "ebft.model.rollout",
    "token_groups": "ebft.method.rewards",
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ebft' has no attribute {name!r}")
