"""What compiled functions keep for their backward pass, how their kernels wait, and the processes that compile them."""

import inspect
import itertools
import signal
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codegen.triton import TritonKernel
from torch.nn.functional import silu

from ebft.method.compiling import prepare_compiling, start_workers, wait_for_stores


def test_backward_makes_activations_again_but_not_attention() -> None:
    """A running maximum stands for FlexAttention, which has no backward pass on a CPU: torch counts neither among the
    expensive operations, nor among the cheap ones."""
    found = []

    def compiler(graph: torch.fx.GraphModule, example: object) -> torch.fx.GraphModule:
        found.append({str(node.target) for node in graph.graph.nodes} & {"aten.silu.default", "aten.cummax.default"})
        return graph

    def layer(x: Tensor) -> Tensor:
        return silu(x @ x) @ x + torch.cummax(x, 0).values.sin()

    prepare_compiling()
    compiled = aot_function(layer, compiler, compiler, partition_fn=min_cut_rematerialization_partition)
    compiled(torch.randn(8, 8, requires_grad=True)).sum().backward()
    assert found == [{"aten.silu.default", "aten.cummax.default"}, {"aten.silu.default"}]


def test_kernels_wait_at_the_end_of_a_loop_that_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waiting is for, only a GPU shows: test_flex, with heads of 256. A version of torch that writes loops in
    another way would need another remedy, or none."""
    source = inspect.getsource(inspect.unwrap(TritonKernel.codegen_body))
    for expected in ("self.body.splice(self.stores)", "self.inside_reduction and", "if tree.is_loop"):
        assert expected in source
    monkeypatch.setattr(TritonKernel, "codegen_body", lambda self: None)
    with config.patch(kernel_name_max_ops=config.kernel_name_max_ops):  # which it changes
        wait_for_stores()
    for stores, loops, reduction in itertools.product([True, False], repeat=3):
        lines: list[str] = []
        kernel: Any = SimpleNamespace(
            stores=["tl.store(...)"] * stores,
            inside_reduction=reduction,
            range_trees=[SimpleNamespace(is_loop=False), SimpleNamespace(is_loop=loops)],
            body=SimpleNamespace(writeline=lines.append),
        )
        TritonKernel.codegen_body(kernel)
        assert lines == ["tl.debug_barrier()"] * (stores and loops and reduction)


def test_processes_that_compile_do_not_leave_when_a_scheduler_gives_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started where torch starts them is deaf to it, and the run itself is not."""
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(AsyncCompile, "warm_pool", lambda: started.append(subprocess.Popen(["sleep", "60"])))
    start_workers()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    (process,) = started
    for notice in signal.SIGTERM, signal.SIGUSR1:
        process.send_signal(notice)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    process.kill()
    process.wait()
