"""torch.compile for a few functions that pass over large tensors, on GPUs. Everything here also runs without it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import cache, wraps
from types import FunctionType
from typing import TypeVar

import torch
import torch._functorch.config

# Past torch's limit of shapes, 8 by default, a function silently runs uncompiled. One run meets a handful.
_SHAPES = 512
T = TypeVar("T")


@cache
def prepare_compiling() -> None:
    """Settings of torch's that all compiled code needs."""
    backward = torch._functorch.config
    # What a backward pass can make again in passing, activations and norms, is not kept: Qwen2.5-1.5B keeps 44 of 68 kB
    # per token and layer. Not by way of `activation_memory_budget`, which would also run FlexAttention a second time.
    for reason in ("used_far_apart", "long_fusible_chains", "materialized_backward"):
        setattr(backward, f"ban_recompute_{reason}", False)
    # Gradients of attention are laid out as its inputs and outputs are. Torch 2.11 expects the order of the dimensions,
    # and copies what is not.
    backward.guess_tangent_strides_as_outputs = True
    if torch.cuda.is_available():
        wait_for_stores()
        start_workers()
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _SHAPES)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 16 * _SHAPES)


def wait_for_stores() -> None:
    """Let the threads of a kernel that torch writes wait for each other at the end of every loop that stores.

    Torch reads the stored buffer again in the kernel's next loop, maybe before another thread has stored its number
    (github.com/pytorch/pytorch/pull/190519): the gradients of Gemma 3's keys were noise by it on an H200.
    """
    from torch._inductor import config
    from torch._inductor.codegen.triton import TritonKernel

    plain = TritonKernel.codegen_body

    @wraps(plain)
    def codegen_body(self: TritonKernel) -> None:
        stored = bool(self.stores) and self.inside_reduction and any(tree.is_loop for tree in self.range_trees)
        plain(self)
        if stored:
            self.body.writeline("tl.debug_barrier()")

    TritonKernel.codegen_body = codegen_body  # type: ignore[method-assign]
    # Kernels are kept on disk by torch's version and settings: another setting, and none from before is taken.
    config.kernel_name_max_ops += 1


def start_workers() -> None:
    """The processes in which torch compiles for a GPU, deaf to the notice that a scheduler gives to all processes of a
    job: a run finishes its step then, and would wait forever for kernels of a process that has left."""
    notices = {signal.SIGTERM, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, notices)  # which what is started inherits
    try:
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.warm_pool()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def compiled(function: Callable[..., T], kind: str = "") -> Callable[..., T]:
    """The function, compiled for every shape it meets; torch's limit counts each kind of call on its own."""
    prepare_compiling()
    assert isinstance(function, FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{kind}" if kind else function.__name__)
    own = FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(own, dynamic=False)
