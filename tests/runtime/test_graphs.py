"""Graphs are made only where their memory leaves enough for everything else."""

from __future__ import annotations

from ebft.runtime.graphs import there_is_room

GIB = 2**30


def test_a_graph_needs_room_for_a_second_pass() -> None:
    # A model of 3 GiB whose passes take 9 more: on 80 GiB there is room, on 16 there is not, on 24 just so.
    for total, expected in (80, True), (24, True), (16, False):
        reserved = 12 * GIB  # what the last pass has left to torch
        found = there_is_room(total * GIB - reserved, reserved, 3 * GIB, 12 * GIB)
        assert found == expected, total
