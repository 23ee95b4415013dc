"""CUDA graphs: a chain of small kernels as one launch, where launching them takes longer than running them.

A graph replays what was captured on the same memory. So its inputs are copied into fixed tensors, shapes must not
change, and weights must stay where they are (an optimiser step and a refreshed working copy change them in place).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ebft.errors import first_line

logger = logging.getLogger(__name__)

# Each graph keeps the memory of its intermediate results: training and evaluation, with and without a short last batch.
_KEPT = 4


class Captured:
    """`function(*tensors)` captured once, replayed on new values of the same shapes."""

    def __init__(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> None:
        self.tensors = [tensor.clone() for tensor in tensors]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):  # compiles what is to be compiled, and lets libraries allocate their work space
                function(*self.tensors)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that pins memory for a data loader, may use CUDA meanwhile.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.outputs = function(*self.tensors)

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        for mine, value in zip(self.tensors, tensors, strict=True):
            mine.copy_(value)
        self.graph.replay()
        outputs = self.outputs
        return outputs.clone() if isinstance(outputs, Tensor) else tuple(output.clone() for output in outputs)


class Graphs:
    """The graphs of one function, by what they were captured for."""

    def __init__(self) -> None:
        self._captured: OrderedDict[Hashable, Captured] = OrderedDict()
        self._failed: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._captured)

    def run(self, options: Hashable, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """function(*tensors), captured for these options and shapes; equal options must mean the same function."""
        key = (options, tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors))
        if key in self._failed:
            return function(*tensors)
        if key not in self._captured:
            try:
                self._captured[key] = Captured(function, tensors)
            except RuntimeError as error:
                logger.warning(f"running without a CUDA graph: {first_line(error)}")
                self._failed.add(key)
                return function(*tensors)
            while len(self._captured) > _KEPT:
                self._captured.popitem(last=False)
        self._captured.move_to_end(key)
        return self._captured[key](tensors)
