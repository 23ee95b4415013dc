"""Several processes: what they share of a batch, and what they add up. All of it does nothing in a run of one process.

Data parallelism without a wrapper: every process holds the whole model and takes its part of every global batch, and
gradients are summed once per step (`sum_gradients`): DistributedDataParallel wants to see a forward pass of the model,
and EBFT runs the decoder itself. Sums, not means: a loss is divided by the token counts of all processes already.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ebft.errors import ConfigError, Preempted

if TYPE_CHECKING:
    from transformers import TrainingArguments

Value = TypeVar("Value")


def count() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if count() > 1 else 0


def barrier() -> None:
    if count() > 1:
        dist.barrier()


def start(config: TrainingArguments) -> None:
    """Where a run starts: join the processes that were launched together, and set up this one's device.

    On CPUs transformers would forget the timeout; on GPUs it does not, and joins itself.
    """
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    # Of what `accelerate launch` asks for, transformers' own sharding does not fit.
    asked = os.environ.pop("ACCELERATE_USE_FSDP", "false").lower() in ("true", "1")
    if asked and getattr(config, "sharding", None) is None:
        raise ConfigError("accelerate launch --use_fsdp does not shard the model here; set fsdp=full_shard")
    on_cpu = config.use_cpu or os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("true", "1")
    if on_cpu and config.world_size > 1 and "MASTER_ADDR" in os.environ and not dist.is_initialized():
        dist.init_process_group(config.ddp_backend or "gloo", timeout=timedelta(seconds=config.ddp_timeout))
    if missing := {*(config.report_to or ())} - {*get_available_reporting_integrations()}:
        raise ConfigError(f"report_to={min(missing)!r} is not known or not installed (pip install {min(missing)})")
    _ = config.device  # set up here, once: it resets what accelerate knows
    if (gpus := config.n_gpu) > 1:  # transformers would use torch's DataParallel
        ways_out = f"start one process per GPU (--launch {gpus}), or show it only one (CUDA_VISIBLE_DEVICES=0)"
        raise ConfigError(f"one process sees {gpus} GPUs; {ways_out}")


def join_alone(device: torch.device) -> None:
    """A group of one, where there is none: torch wants one for anything that is sharded or could be."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def leave() -> None:
    """At the end of the program; torch warns about groups that are just dropped."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def lost_another(error: BaseException) -> bool:
    """Whether an error only says that another process has gone, or no longer answers."""
    met = error.__cause__ if isinstance(error, Preempted) else error
    words = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe")
    said = count() > 1 and isinstance(met, RuntimeError) and any(word in str(met) for word in words)
    return said or isinstance(met, dist.DistError)


def sum_over_processes(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sums of scalars over all processes, in one exchange; every process gets the same numbers."""
    if count() == 1:
        return values
    totals = torch.stack([value.double() for value in values.values()])
    dist.all_reduce(totals)
    return {name: total.to(value.dtype) for (name, value), total in zip(values.items(), totals, strict=True)}


def join_rows(values: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """What the processes found for their rows (row i is with process i modulo their number), in the order of rows."""
    if count() == 1:
        return values
    mine = torch.stack([value.double() for value in values.values()]).to(device)
    found = [torch.empty_like(mine) for _ in range(count())]
    dist.all_gather(found, mine)
    joined = torch.stack(found, -1).flatten(1).cpu()
    return {name: row.to(values[name].dtype) for name, row in zip(values, joined, strict=True)}


def from_first(value: Value) -> Value:
    """The first process's value (anything that pickles), on all of them."""
    holder = [value]
    if count() > 1:
        dist.broadcast_object_list(holder, src=0)
    return holder[0]


def all_or_none(check: Callable[[], object]) -> None:
    """Call `check` in all processes; a user's error that the first one meets, all of them raise."""
    error: ValueError | None = None
    try:
        check()
    except ValueError as met:
        error = met
    if (first := from_first(error) or error) is not None:
        raise first


@torch.no_grad()
def copy_from_first(model: nn.Module) -> None:
    """All processes start from the first one's weights, also where a model was made with random ones."""
    if count() > 1:
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, src=0)


@torch.no_grad()
def sum_gradients(model: nn.Module) -> None:
    """Add up the gradients of all processes, in place. Every process ends up with the same bits.

    A parameter that had no part in this process's pass may have had one in another's: it counts as zero.
    """
    under_way = []
    for parameter in model.parameters() if count() > 1 else ():
        if parameter.requires_grad:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.contiguous()
            parameter.grad = gradient
            under_way.append(dist.all_reduce(gradient, async_op=True))
    for sent in under_way:
        sent.wait()
