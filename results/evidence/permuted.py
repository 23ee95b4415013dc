"""`ebft train` with the advantages of every anchor permuted among its samples: the control that the reward teaches.

    python results/evidence/permuted.py train --config ...

Everything else is as in the run that it is the control of: the same rollouts, the same sizes of advantages, the same
cross-entropy term. A permutation is uniform, so an advantage has an expectation of zero for every sample.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from ebft import cli, iteration

leave_one_out_advantages = iteration.leave_one_out_advantages


def permuted(alignment: Tensor, diversity: Tensor, alpha: float = 1.0) -> Tensor:
    """The advantages [..., n] in a random order along n. Draws from a generator of its own: the run's are untouched."""
    advantages = leave_one_out_advantages(alignment, diversity, alpha)
    keys = torch.rand(advantages.shape, generator=GENERATOR)
    return advantages.gather(-1, keys.argsort(-1).to(advantages.device))


GENERATOR = torch.Generator().manual_seed(0)

if __name__ == "__main__":
    iteration.leave_one_out_advantages = permuted
    sys.exit(cli.main(sys.argv[1:]))
