"""Documents, answers and padding of a batch: functions on [R, T]; R is the batch's rows, or 1 if they are alike."""

from __future__ import annotations

import torch
from torch import Tensor


def batch_size_of(lengths: Tensor | None, *given: Tensor | None) -> int | None:
    """The rows of what is given: lengths [b], others [b, T], anchors [b, B]. None if nothing differs by row."""
    rows = [len(value) for value in given if value is not None and value.dim() == 2]
    return max([*rows, *([] if lengths is None else [len(lengths)])], default=None)


def flags(given: Tensor | None, R: int, T: int) -> Tensor:
    """bool [R, T] of [T] or [R, T]; all True if nothing is given."""
    return torch.ones(R, T, dtype=torch.bool) if given is None else given.bool().cpu().expand(R, T)


def documents_and_padding(R: int, T: int, document_ids: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Documents numbered by runs of equal ids, and where padding is: both [R, T]."""
    padding_RT = torch.zeros(R, T, dtype=torch.bool)
    if lengths is not None:
        padding_RT = torch.arange(T) >= lengths.cpu()[:, None]
    if document_ids is None:
        return torch.zeros(R, T, dtype=torch.long), padding_RT
    ids_RT = document_ids.cpu().expand(R, T)
    padding_RT = padding_RT | (ids_RT < 0)
    changes = torch.zeros(R, T, dtype=torch.bool)
    # Padding tokens are documents of their own, one each: they see themselves, so that no softmax is empty.
    changes[:, 1:] = (ids_RT[:, 1:] != ids_RT[:, :-1]) | padding_RT[:, 1:] | padding_RT[:, :-1]
    return changes.long().cumsum(1), padding_RT


def document_starts(documents_RT: Tensor) -> Tensor:
    starts = torch.ones_like(documents_RT, dtype=torch.bool)
    starts[:, 1:] = documents_RT[:, 1:] != documents_RT[:, :-1]
    return starts


def latest(marks_RT: Tensor) -> Tensor:
    """For every token, the index of the last mark up to it."""
    return torch.where(marks_RT, torch.arange(marks_RT.shape[1]), 0).cummax(1).values


def truth_lengths(starts_RT: Tensor, unusable_RT: Tensor) -> Tensor:
    """How many tokens of truth begin at every position: up to the next document or unusable token."""
    T = starts_RT.shape[1]
    index_T = torch.arange(T)
    stops_RT = torch.where(starts_RT | unusable_RT, index_T, T)
    # The first stop after t, for all t at once: a running minimum from the right.
    after_RT = torch.cat([stops_RT[:, 1:], torch.full_like(stops_RT[:, :1], T)], 1)
    next_stop_RT = after_RT.flip(1).cummin(1).values.flip(1)
    return torch.where(unusable_RT, 0, next_stop_RT - index_T)


def answer_begins(answers_RT: Tensor, documents_RT: Tensor) -> Tensor:
    """True at the first token of every answer; an answer lies in one document."""
    begins_RT = answers_RT.clone()
    begins_RT[:, 1:] &= ~answers_RT[:, :-1] | document_starts(documents_RT)[:, 1:]
    return begins_RT


def whole_answers(answers_RT: Tensor, documents_RT: Tensor, ends_RT: Tensor, horizon: int) -> Tensor:
    """The tokens of those answers that a completion, which ends at end tokens, can be compared with.

    Such an answer has a context in its own document. It stops after its first end token (True in `ends_RT`), as a
    completion does, or where the answer or the document stops. An answer that reaches the last token of the row
    without an end token there may go on in the next row: it is left out, unless `horizon` tokens of it are here.
    """
    first_RT = latest(answer_begins(answers_RT, documents_RT))  # of the answer that a token is in
    has_context_RT = ~document_starts(documents_RT).gather(1, first_RT)
    ends_RT = ends_RT & answers_RT
    ends_before_RT = ends_RT.long().cumsum(1) - ends_RT.long()
    not_ended_RT = ends_before_RT == ends_before_RT.gather(1, first_RT)
    usable_RT = answers_RT & has_context_RT & not_ended_RT
    cut_R = usable_RT[:, -1] & ~ends_RT[:, -1] & (answers_RT.shape[1] - first_RT[:, -1] < horizon)
    in_last_answer_RT = first_RT == first_RT[:, -1:]
    return usable_RT & ~(in_last_answer_RT & cut_R[:, None])


def answer_starts(answers_RT: Tensor, documents_RT: Tensor, round_up: bool) -> Tensor:
    """The first token of every answer that has a context: [R, places], 0 where a row has fewer."""
    T = answers_RT.shape[1]
    begins_RT = answer_begins(answers_RT, documents_RT)
    begins_RT[:, 0] = False  # no context before it
    places = max(int(begins_RT.sum(1).max()), 1)
    if round_up:
        places = 1 << (places - 1).bit_length()
    # The positions of the True entries of each row, in order and without a loop.
    positions = torch.where(begins_RT, torch.arange(T), T).sort(1).values[:, :places]
    return torch.where(positions == T, 0, positions)
