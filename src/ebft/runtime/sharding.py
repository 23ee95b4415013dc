"""Sharded models (FSDP2): every process keeps a part of each weight, of its gradient and of its optimiser state.

torch gathers the weights of a module when it is called and frees them afterwards: those of every layer, and in one
piece of the model around them embeddings, final norm and head, which may share a matrix. ebft never calls that model,
which would make logits of every token: it runs the decoder and multiplies with the head's weight itself, in chunks. So
the model gets a method that runs its decoder (`_DECODE`) and counts as one of its forward passes: embeddings, norm and
head stay gathered until the backward pass has used them, or `release`.

Every call gathers, so all processes must run the same passes. Only the first needs to have loaded the model; the others
may have it without weights (on torch's device "meta"). A checkpoint can be read by any number of processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from ebft.runtime.files import Json

_DECODE = "ebft_decode"
MODEL, OPTIMIZER, AVERAGE = "model_shards", "optimizer_shards", "feature_average_shards"  # in a checkpoint


def shard_model(
    model: nn.Module,
    decoder: nn.Module,
    layers: Iterable[nn.Module],
    device: torch.device,
    dtype: torch.dtype | None = None,
    reshard: bool = True,
) -> None:
    """Shard the first process's causal language model over all of them, in place.

    dtype: of the gathered weights, which compute. reshard: free a layer's weights after each of its forward passes.
    """
    shard(model, layers, device, dtype, reshard, reshard_root=False)
    # Of some models hidden states are a view. Nothing here writes into them.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    setattr(model, _DECODE, lambda decoder, **inputs: decoder(**inputs))
    register_fsdp_forward_method(model, _DECODE)
    call_through(decoder, model)


def call_through(decoder: nn.Module, model: nn.Module) -> None:
    """From now on `run_decoder` runs this decoder, or a cut of it, by the sharded model it belongs to."""
    decoder.called_by = getattr(model, _DECODE)


def shard(
    root: nn.Module, layers: Iterable[nn.Module], device: torch.device, dtype: Any, reshard: bool, reshard_root: bool
) -> None:
    # Inputs are not cast: with weights in bf16, everything between the layers is in bf16 already, or not for a reason.
    policy = MixedPrecisionPolicy(dtype, torch.float32 if dtype is not None else None, cast_forward_inputs=False)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    weights = [parameter.detach() for parameter in root.parameters()]
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(root, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_root)
    _send_out(root, weights, device)
    for module in _pieces(root):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no other


@torch.no_grad()
def _send_out(root: Any, weights: list[Tensor], device: torch.device) -> None:
    """The first process's `weights`, as they were before, to the shards of all processes."""
    if any(parameter.is_meta for parameter in root.parameters()):
        root.to_empty(device=device)
        root.tie_weights()
    for mine, weight in zip(root.parameters(), weights, strict=True):
        complete = weight.to(device) if dist.get_rank() == 0 else torch.empty_like(weight, device=device)
        dist.broadcast(complete, src=0)
        part = distribute_tensor(complete, mine.device_mesh, mine.placements, src_data_rank=None)
        mine.to_local().copy_(part.to_local())
    for buffer in root.buffers():
        complete = buffer.contiguous()
        dist.broadcast(complete, src=0)
        buffer.copy_(complete)


def _pieces(module: nn.Module) -> Iterator[FSDPModule]:
    return (m for m in module.modules() if isinstance(m, FSDPModule))


def is_sharded(module: nn.Module) -> bool:
    return next(_pieces(module), None) is not None


def release(*modules: nn.Module | None) -> None:
    """Free what is still gathered. Before weights are looked at, saved or loaded: only shards stand for the model."""
    for module in modules:
        for piece in _pieces(module) if module is not None else ():
            piece.reshard()


def whole(tensor: Tensor) -> Tensor:
    """All of a sharded tensor, on all processes; all of them must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def clip_gradients(parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """The norm of the gradients of all shards of all processes, and gradients that are no longer."""
    return whole(torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type))


def weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model, by name: parameters, each once; of an adapter's model, those that train."""
    if hasattr(model, "disable_adapter"):
        return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    saved = model.state_dict().keys()
    found = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.detach() for name, tensor in found if name in saved}


def gathered(model: nn.Module) -> dict[str, Tensor]:
    """The whole of `weights(model)` on the host of the first process, one after the other; all processes must ask."""
    complete = ((name, whole(value)) for name, value in weights(model).items())
    return {name: value.cpu() for name, value in complete if dist.get_rank() == 0}


def save(folder: Path, state: Json) -> None:
    _with_plain_errors(dcp.save, folder, state)


def load(folder: Path, state: Json) -> None:
    """Into the very tensors of `state`; whatever else it holds is replaced in it."""
    _with_plain_errors(dcp.load, folder, state)


def _with_plain_errors(act: Callable[..., object], folder: Path, state: Json) -> None:
    """torch collects what went wrong in all processes in an exception of its own; the first will do."""
    try:
        act(state, checkpoint_id=folder)
    except dcp.CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


def load_whole(folder: Path, model: nn.Module) -> None:
    """Fill an ordinary model from the shards in a checkpoint, without other processes."""
    dcp.load(weights(model), checkpoint_id=folder / MODEL, no_dist=True)
