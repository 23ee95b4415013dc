"""Checkpoints of a sharded run (torch.distributed.checkpoint): every process writes and reads its own part.

What a part is depends on the number of processes, what is in the files does not: they can be read by any number, or by
one that is no process of a group (`load_whole`). No process ever holds all of it, unless it asks for the whole model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from ebft.runtime.sharding import whole

MODEL, OPTIMIZER, AVERAGE = "model_shards", "optimizer_shards", "feature_average_shards"


def weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model, by name: parameters, each once; of an adapter's model, those that train."""
    adapter = hasattr(model, "disable_adapter")
    found = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad or not adapter}
    return found if adapter else found | _persistent_buffers(model)


def _persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in saved}


def gathered(model: nn.Module) -> dict[str, Tensor]:
    """The whole of `weights(model)` on the host of the first process, one after the other; all processes must ask."""
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    found = {}
    for name, value in weights(model).items():
        complete = whole(value)
        if first:
            found[name] = complete.cpu()
    return found


def save(folder: Path, state: dict[str, Any]) -> None:
    with _plain_errors():
        dcp.save(state, checkpoint_id=folder)


def load(folder: Path, state: dict[str, Any]) -> None:
    """Into the very tensors of `state`; whatever else it holds is replaced in it."""
    with _plain_errors():
        dcp.load(state, checkpoint_id=folder)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """torch collects what went wrong in all processes in an exception of its own; the first will do."""
    try:
        yield
    except dcp.CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


def optimizer_state(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """By names of parameters, so that the number of processes does not matter."""
    return get_optimizer_state_dict(model, _unwrapped(optimizer))


def set_optimizer_state(model: nn.Module, optimizer: Any, state: dict[str, Any]) -> None:
    set_optimizer_state_dict(model, _unwrapped(optimizer), state)


def _unwrapped(optimizer: Any) -> Any:
    return getattr(optimizer, "optimizer", optimizer)  # accelerate's takes steps only when it likes


def load_whole(folder: Path, model: nn.Module) -> None:
    """Fill an ordinary model from the shards in a checkpoint, without other processes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it is not wanted here
        dcp.load(weights(model), checkpoint_id=folder / MODEL, no_dist=True)
