"""What compiled functions keep for their backward pass, how their kernels wait, and the processes that compile them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config
from torch._inductor.codegen.triton import TritonKernel
from torch.nn.functional import silu

from ebft.method.compiling import prepare_compiling, wait_for_stores


def operations(function: Callable[..., Tensor], *inputs: Tensor) -> list[set[str]]:
    """Of the forward and of the backward pass."""
    found = []

    def compiler(graph: torch.fx.GraphModule, example: object) -> torch.fx.GraphModule:
        found.append({str(node.target) for node in graph.graph.nodes})
        return graph

    prepare_compiling()
    compiled = aot_function(function, compiler, compiler, partition_fn=min_cut_rematerialization_partition)
    compiled(*inputs).sum().backward()
    return found


def test_activations_are_made_again() -> None:
    x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    _, backward = operations(lambda x, w: silu(x @ w) @ w, x, w)
    assert "aten.silu.default" in backward


def test_attention_is_not_computed_again() -> None:
    """A running maximum stands for FlexAttention, which has no backward pass on a CPU: torch counts neither among the
    expensive operations, nor among the cheap ones."""
    forward, backward = operations(lambda x: torch.cummax(x, 0).values.sin(), torch.randn(8, 8, requires_grad=True))
    assert "aten.cummax.default" in forward
    assert "aten.cummax.default" not in backward


@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("reduction", [True, False])
def test_kernels_wait_at_the_end_of_a_loop_that_stores(
    stores: bool, loops: bool, reduction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waiting is for, only a GPU shows: test_flex, with heads of 256. Here torch's own part is a stand-in."""
    monkeypatch.setattr(TritonKernel, "codegen_body", lambda self: self.body.writeline("for ..."))
    with config.patch(kernel_name_max_ops=config.kernel_name_max_ops):  # which it changes
        wait_for_stores()
    lines: list[str] = []
    kernel = SimpleNamespace(
        stores=["tl.store(...)"] if stores else [],
        inside_reduction=reduction,
        range_trees=[SimpleNamespace(is_loop=False), SimpleNamespace(is_loop=loops)],
        body=SimpleNamespace(writeline=lines.append),
    )
    TritonKernel.codegen_body(kernel)  # type: ignore[arg-type]
    assert lines == ["for ..."] + ["tl.debug_barrier()"] * (stores and loops and reduction)


def test_torch_writes_loops_of_kernels_as_waiting_expects() -> None:
    """A version that writes them in another way would need another remedy, or none."""
    source = inspect.getsource(inspect.unwrap(TritonKernel.codegen_body))
    for expected in ("self.body.splice(self.stores)", "self.inside_reduction and", "if tree.is_loop"):
        assert expected in source


NOTICE = """
import os, signal, time
from ebft.method.compiling import start_workers
start_workers()
assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "the run itself hears it"
from torch._inductor.async_compile import AsyncCompile
pool = AsyncCompile.process_pool()
for process in pool.process.pid, pool.submit(os.getpid).result(120):
    for notice in signal.SIGTERM, signal.SIGUSR1:
        os.kill(process, notice)
time.sleep(0.5)
assert pool.submit(os.getpid).result(60) != os.getpid()
"""


def test_processes_that_compile_do_not_leave_when_a_scheduler_gives_notice() -> None:
    subprocess.run(
        [sys.executable, "-c", NOTICE],
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"},
        check=True,
        timeout=240,
    )
