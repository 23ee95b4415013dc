"""What processes share, in a run of one and in a group of one; tests/distributed has several."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ebft.errors import ConfigError
from ebft.runtime import processes
from tests.runtime.sharded_models import CPU


def check_that_nothing_changes() -> None:
    assert (processes.count(), processes.rank()) == (1, 0)
    values = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3, 4])}
    assert processes.sum_over_processes(values) is values
    assert processes.join_rows(values, CPU) is values
    assert processes.from_first("anything") == "anything"
    assert processes.same_on_all(object())
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    before = [(p.detach().clone(), p.grad.clone()) for p in model.parameters() if p.grad is not None]
    processes.copy_from_first(model)
    processes.sum_gradients(model)
    for parameter, (weight, gradient) in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, weight)
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


def test_one_process_has_nobody_to_ask() -> None:
    assert not dist.is_initialized()
    check_that_nothing_changes()
    processes.barrier()
    processes.leave()


def test_a_group_of_one_is_the_same(group: None) -> None:
    assert dist.is_initialized()
    check_that_nothing_changes()
    processes.join_alone(CPU)  # twice is once
    processes.leave()
    assert not dist.is_initialized()


def test_an_error_of_the_first_process_is_raised() -> None:
    def refuse() -> None:
        raise ConfigError("wrong")

    with pytest.raises(ConfigError, match="wrong"):
        processes.all_or_none(refuse)
    processes.all_or_none(lambda: "fine")

    def fail() -> None:
        raise RuntimeError("not the user's fault")

    with pytest.raises(RuntimeError):
        processes.all_or_none(fail)


def test_a_single_process_cannot_lose_another() -> None:
    assert not processes.lost_another(RuntimeError("Connection closed by peer"))
    assert processes.lost_another(dist.DistNetworkError("no answer"))


def test_one_process_takes_one_gpu() -> None:
    processes.check_one_gpu(0)
    processes.check_one_gpu(1)
    with pytest.raises(ConfigError, match="one process sees 4 GPUs; start one process per GPU"):
        processes.check_one_gpu(4)
