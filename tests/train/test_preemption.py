"""Notices that come while a library is at work; tests/train/test_checkpoints.py has those that come in training."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

import pytest

from ebft.errors import Preempted
from ebft.runtime.launch import stop_on_notice
from ebft.train.preemption import Preemption


def library(number: int) -> NoReturn:
    """Makes another exception of the one that a handler raises, as matplotlib does."""
    try:
        os.kill(os.getpid(), number)
    except BaseException:
        raise ValueError("Invalid bounding box") from None
    raise AssertionError("no handler was called")


def test_a_notice_that_a_library_makes_an_error_of() -> None:
    with pytest.raises(Preempted, match="SIGTERM"), Preemption().listen():
        library(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), Preemption().listen():
        library(signal.SIGINT)
    with pytest.raises(Preempted, match="SIGUSR1"), stop_on_notice():
        library(signal.SIGUSR1)


def test_errors_without_a_notice_are_themselves() -> None:
    for listening in (Preemption().listen(), stop_on_notice()):
        with pytest.raises(ValueError, match="Invalid"), listening:
            raise ValueError("Invalid bounding box")
