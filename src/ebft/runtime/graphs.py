"""CUDA graphs: a chain of small kernels as one launch, where launching them takes longer than running them.

A graph replays what was captured on the same memory. So its inputs are copied into fixed tensors, shapes must not
change, and weights must stay where they are (an optimiser step and a refreshed working copy change them in place).

All graphs keep their intermediate results in one pool of memory: they run one after the other, and what one of them
returns is copied before the next begins.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ebft.errors import first_line

logger = logging.getLogger(__name__)

# The sizes of packed trees, of training and evaluation, with and without a short last batch.
_KEPT = 32


class Captured:
    """`function(*tensors)` captured once, replayed on new values of the same shapes."""

    def __init__(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> None:
        self.tensors = [tensor.clone() for tensor in tensors]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries allocate their work space for a stream when they first see it
            function(*self.tensors)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins memory for a data loader, may use CUDA meanwhile.
        with torch.cuda.graph(self.graph, pool=_first_graph().pool(), capture_error_mode="thread_local"):
            self.outputs = function(*self.tensors)

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        torch._foreach_copy_(self.tensors, list(tensors))
        self.graph.replay()
        outputs = self.outputs
        return outputs.clone() if isinstance(outputs, Tensor) else tuple(output.clone() for output in outputs)


@cache
def _first_graph() -> torch.cuda.CUDAGraph:
    """Whose pool all others share. It stays: a pool whose last graph is gone cannot be used again."""
    graph, held = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        held.add_(1)
    return graph


def idle_bytes() -> int:
    """Memory that graphs keep for their intermediate results, which torch does not count as allocated."""
    return sum(
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) != (0, 0)
        for block in segment["blocks"]
        if block["state"] == "inactive"
    )


def there_is_room(free: int, reserved: int, allocated: int, peak: int) -> bool:
    """Whether a graph may keep as much as a pass has ever needed at once, and a pass without a graph still runs: what
    one of them keeps the other cannot have."""
    return free + reserved - allocated >= 2 * (peak - allocated)


class Graphs:
    """The graphs of one function, by what they were captured for."""

    def __init__(self) -> None:
        self._captured: OrderedDict[Hashable, Captured] = OrderedDict()
        self._seen: set[Hashable] = set()
        self._failed: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._captured)

    def run(
        self,
        options: Hashable,
        function: Callable[..., Any],
        tensors: Sequence[Tensor],
        rehearsal: Sequence[Tensor] | None = None,
    ) -> Any:
        """function(*tensors), captured the second time that it is asked for with these options and shapes.

        Equal options must mean the same function. It runs once more before it is captured: where it changes something
        beside its result, give a `rehearsal`, values on which it changes nothing.
        """
        key = (options, tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors))
        if key in self._failed or key not in self._seen:
            self._seen.add(key)  # a shape that never comes back is not worth a graph; and this run compiles
            return function(*tensors)
        if key not in self._captured:
            if not there_is_room(
                torch.cuda.mem_get_info()[0],
                torch.cuda.memory_reserved(),
                torch.cuda.memory_allocated(),
                torch.cuda.max_memory_allocated(),
            ):
                self._do_without(key, "too little memory is free")
                return function(*tensors)
            captured = None
            try:
                captured = Captured(function, tensors if rehearsal is None else rehearsal)
            except RuntimeError as error:
                self._do_without(key, first_line(error))
            if captured is None:  # not above: an error holds on to what the capture had, and memory may be short
                return function(*tensors)
            self._captured[key] = captured
            while len(self._captured) > _KEPT:
                self._captured.popitem(last=False)
        self._captured.move_to_end(key)
        return self._captured[key](tensors)

    def _do_without(self, key: Hashable, reason: str) -> None:
        if not self._failed:  # once is enough
            logger.warning(f"running without a CUDA graph: {reason}")
        self._failed.add(key)
