"""The recipe that `ebft plan` recommends: the first strategy that fits, in the order of what it gives up.

The whole model comes before an adapter, and an adapter before 4 bits; of each, one copy per GPU before shards, and
activations that are kept before ones that are computed again. The number of sequences in a step stays what the recipe
has it at, since results depend on it; how it is divided is chosen here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ebft.planning.memory import Memory, estimate, largest_eval_batch, largest_micro_batch, largest_rollout_batch
from ebft.planning.rates import step_seconds
from ebft.planning.strategies import Strategy
from ebft.planning.workload import Workload

if TYPE_CHECKING:
    from ebft.planning.model_shape import ModelShape


@dataclass(frozen=True)
class Recommendation:
    strategy: Strategy
    memory: Memory
    settings: dict[str, Any]  # what differs from the recipe as it was given
    rows_per_step: int
    work: Workload  # with these settings

    def seconds(self, active_parameters: int, gpu: str, gpus: int) -> float:
        tokens = self.rows_per_step * self.work.packed
        return step_seconds(active_parameters, tokens, gpu, gpus, self.strategy.adapter, self.work.checkpointing)


def recommend(
    shape: ModelShape,
    works: Mapping[Strategy, Workload],
    rows_per_step: int,
    gpus: int,
    room: float,
    adapter_learning_rate: float | None = None,
) -> Recommendation | None:
    """The recipe to train by; None if nothing fits.

    Args:
        works: what each strategy computes, in the order of preference.
        room: bytes of a GPU that a run may use.
        adapter_learning_rate: for an adapter, where the recipe as it was given has none that is meant for one.
    """
    rows = -(-rows_per_step // gpus)  # of one GPU
    for strategy, given in works.items():
        if strategy.sharded and gpus == 1:
            continue
        for checkpointing in (False, True):
            work = replace(given, bf16=True, checkpointing=checkpointing, rows=rows, micro_batch=1)
            rolled_out = min(rows, largest_rollout_batch(shape, work, strategy, room))
            evaluated = min(given.eval_rows, largest_eval_batch(shape, work, strategy, room)) if given.eval_rows else 0
            largest = largest_micro_batch(shape, work, strategy, room)
            if not largest or not rolled_out or (given.eval_rows and not evaluated):
                continue
            micro_batch = max(n for n in range(1, min(rows, largest) + 1) if rows % n == 0)
            work = replace(work, micro_batch=micro_batch, rows=rolled_out, eval_rows=evaluated)
            memory = estimate(shape, work, strategy)
            if memory.peak > room:
                continue
            settings: dict[str, Any] = {
                "bf16": True,
                "per_device_train_batch_size": micro_batch,
                "gradient_accumulation_steps": rows // micro_batch,
            }
            optional = {
                "rollout_batch_size": (rolled_out, rolled_out < rows),
                "per_device_eval_batch_size": (evaluated, evaluated < given.eval_rows),
                "gradient_checkpointing": (True, checkpointing),
                "lora": (True, strategy.adapter),
                "learning_rate": (adapter_learning_rate, strategy.adapter and adapter_learning_rate is not None),
                "load_in_4bit": (True, strategy.four_bit),
                "fsdp": ("full_shard", strategy.sharded),
            }
            settings |= {name: value for name, (value, needed) in optional.items() if needed}
            return Recommendation(strategy, memory, settings, rows * gpus, work)
    return None


def smallest(given: Workload) -> Workload:
    """With the settings that need the least memory, for the same sequences."""
    return replace(given, bf16=True, checkpointing=True, micro_batch=1, rows=1, eval_rows=min(1, given.eval_rows))
