"""Where everything stands in a packed sequence: anchors, order, position ids and the one mask rule.

One packed sequence holds T context tokens and, after them, n completions of G tokens for each of B anchors:

    [ x_0 ... x_{T-1} | anchor 1: n completions of G tokens | anchor 2: ... | ... | anchor B ]

so that all n*B completions share one copy of their context (paper, appendix on strided parallel rollouts; the
paper appends tokens step by step, here a completion is contiguous, which is what caches and block-sparse
kernels like). An anchor at a stands between x[a-1] and x[a]: its context is x[:a], its truth x[a:a+G].

What a token sees (`allowed` decides):
- a context token: the context tokens up to itself;
- token g of a completion at anchor a: the context tokens before a, and tokens 0..g of its own completion;
- with document ids, only tokens of its own document; with a window, only tokens less than that many positions
  back. Never another completion, never the truth after its anchor.

Not covered: what a completion emits after an end token needs no mask of its own. Nothing before an end token
can see what follows it, so it is enough that `completion_lengths` keeps it out of loss and features.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ebft.method.anchors import (
    answer_starts,
    at_least_one,
    common_batch_size,
    document_begin,
    document_starts,
    documents_and_padding,
    truth_lengths,
    why_no_anchor,
)

_PER_ROW = ("_anchors", "_valid", "_truths", "_truth_mask", "row_positions", "visible_context", "packed_documents")


class PackedLayout:
    """The layout for any chosen anchors. `StridedLayout` is the paper's choice of them.

    Args:
        context_length: T.
        horizon: G, tokens per completion.
        samples: n, completions per anchor.
        anchors: LongTensor [B], or [b, B] when the rows of a batch have their own; entries below 1 are empty
            places. An anchor must leave a non-empty context in its own document.
        document_ids: LongTensor [T] or [b, T]; a run of equal ids is one document, a negative id is padding.
            None: one document, no document mask.
        answer_mask: BoolTensor [T] or [b, T]; if given, truth windows must lie in an answer, and only answer
            tokens count in the cross-entropy (`truth_mask`).
        target_mask: BoolTensor [T] or [b, T]; which tokens count in the cross-entropy, where not those of
            `answer_mask`.
        lengths: LongTensor [b], real tokens per row of a right-padded batch.
        whole_truth: True drops an anchor whose truth is shorter than G; False keeps it, with the truth ending
            where its document, its answer or the sequence ends (`truth_lengths`).
        drop_unused: leave out anchors that no row keeps.
        allow_empty: let a batch pass in which no row keeps any anchor, instead of raising an error.

    Attributes:
        anchors: [B] or [b, B]; empty places hold 1 and are False in `anchor_mask`.
        anchor_mask: bool [B] or [b, B], False where a row drops the anchor.
        truth_lengths: [B] or [b, B], tokens of truth per anchor: G where the window is whole, 0 where dropped.
        truth_mask: bool [T] or [b, T], tokens that count as targets of the cross-entropy.

    What the mask rule compares, for attention kernels; R is b, or 1 if nothing differs by row:
        visible_context: [R, S], how many leading context tokens a packed token may look back to.
        completion_index: [S], the number of its completion; -1 for context tokens.
        packed_documents: [R, S], or None without documents.
        row_positions: [R, S].
    """

    def __init__(
        self,
        context_length: int,
        horizon: int,
        samples: int,
        anchors: Tensor,
        document_ids: Tensor | None = None,
        answer_mask: Tensor | None = None,
        lengths: Tensor | None = None,
        whole_truth: bool = False,
        drop_unused: bool = False,
        allow_empty: bool = False,
        target_mask: Tensor | None = None,
    ) -> None:
        self.context_length = T = at_least_one("context_length", context_length)
        self.horizon = at_least_one("horizon", horizon)
        self.samples = at_least_one("samples", samples)
        self.batch_size = common_batch_size(T, anchors, document_ids, answer_mask, lengths, target_mask)
        # Inside, every tensor has a row dimension R: one row if nothing differs by row, else the batch's.
        R = self.batch_size or 1
        documents_RT, padding_RT = documents_and_padding(R, T, document_ids, lengths)
        answers_RT = (
            torch.ones(R, T, dtype=torch.bool) if answer_mask is None else answer_mask.bool().cpu().expand(R, T)
        )
        targets_RT = answers_RT if target_mask is None else target_mask.bool().cpu().expand(R, T)
        starts_RT = document_starts(documents_RT)
        anchors_RB = anchors.to("cpu", torch.long).expand(R, -1)

        inside_RB = (anchors_RB >= 1) & (anchors_RB < T)
        anchors_RB = torch.where(inside_RB, anchors_RB, 1).clamp(max=T - 1)
        truth_RB = truth_lengths(starts_RT, padding_RT | ~answers_RT).gather(1, anchors_RB).clamp(max=horizon)
        has_context_RB = ~starts_RT.gather(1, anchors_RB)
        valid_RB = inside_RB & has_context_RB & (truth_RB >= (horizon if whole_truth else 1))
        if not allow_empty and not bool(valid_RB.any()):
            raise ValueError(why_no_anchor(document_ids, answer_mask, lengths))
        used = valid_RB.any(0) if drop_unused else torch.ones(anchors_RB.shape[1], dtype=torch.bool)

        self._anchors = anchors_RB[:, used]
        self._valid = valid_RB[:, used]
        self._truths = torch.where(valid_RB, truth_RB, 0)[:, used]
        self._truth_mask = ~starts_RT & ~padding_RT & targets_RT
        self._describe_tokens(documents_RT if document_ids is not None else None)
        self.has_documents = document_ids is not None
        # True if all rows of a batch see the same: attention then needs one mask for all of them. With documents,
        # lengths matter too, because padding tokens are documents of their own.
        same_documents = document_ids is None or (document_ids.dim() == 1 and lengths is None)
        self.rows_alike = anchors.dim() == 1 and same_documents

    def _describe_tokens(self, documents_RT: Tensor | None) -> None:
        """The attributes of every packed token that the mask rule compares."""
        T, G, n = self.context_length, self.horizon, self.samples
        R, B = self._anchors.shape
        self.num_anchors = B
        self.packed_length = T + B * n * G

        def to_completions(per_anchor_RB: Tensor) -> Tensor:
            return per_anchor_RB[:, :, None].expand(-1, -1, n * G).flatten(1)

        index_T = torch.arange(T)
        positions_RT = index_T.expand(R, -1)
        if documents_RT is not None:
            positions_RT = positions_RT - document_begin(documents_RT)
        last_context_RB = self._anchors - 1
        first_position_RB = positions_RT.gather(1, last_context_RB) + 1
        steps = torch.arange(G).repeat(B * n)
        self.row_positions = torch.cat([positions_RT, to_completions(first_position_RB) + steps], 1)
        self.visible_context = torch.cat([(index_T + 1).expand(R, -1), to_completions(self._anchors)], 1)
        self.completion_index = torch.cat([torch.full((T,), -1), torch.arange(B * n).repeat_interleave(G)])
        self.packed_documents: Tensor | None = None
        if documents_RT is not None:
            of_completions = to_completions(documents_RT.gather(1, last_context_RB))
            self.packed_documents = torch.cat([documents_RT, of_completions], 1)
        # Plain integers, so that attention over chunks of anchors can leave out the context after them without
        # asking the device.
        self.furthest_context: list[int] = self._anchors.amax(0).tolist()

    # ---- what a layout tells ---------------------------------------------------------------------------------------

    @property
    def anchors(self) -> Tensor:
        return self._squeeze(self._anchors)

    @property
    def anchor_mask(self) -> Tensor:
        return self._squeeze(self._valid)

    @property
    def truth_lengths(self) -> Tensor:
        return self._squeeze(self._truths)

    @property
    def truth_mask(self) -> Tensor:
        return self._squeeze(self._truth_mask)

    @property
    def position_ids(self) -> Tensor:
        return self._squeeze(self.row_positions)

    @property
    def completion_slots(self) -> Tensor:
        """LongTensor [B, n, G]: where token g of every sample of every anchor stands in the packed sequence."""
        slots = torch.arange(self.context_length, self.packed_length, device=self.device)
        return slots.view(self.num_anchors, self.samples, self.horizon)

    @property
    def truth_slots(self) -> Tensor:
        """LongTensor [B, G] or [b, B, G]: where the truth stands; past a short truth, its last token again."""
        steps = torch.arange(self.horizon, device=self.device)
        steps = steps.clamp(max=(self._truths[..., None] - 1).clamp(min=0))
        return self._squeeze((self._anchors[..., None] + steps).clamp(max=self.context_length - 1))

    def attention_mask(self, window: int | None = None) -> Tensor:
        """The mask rule as a dense bool tensor [S, S] or [b, S, S], True where the row may see the column.

        For inspection, tests and small inputs: it grows with S*S. The attention backends apply the same rule
        without it.
        """
        slots = torch.arange(self.packed_length, device=self.device)
        mask = self.allowed(self.mask_rows[:, None, None], slots[:, None], slots, window)
        return mask[0] if self.batch_size is None else mask.expand(self.batch_size, -1, -1)

    @property
    def mask_rows(self) -> Tensor:
        """The rows that have masks of their own: 0 alone if all rows see the same."""
        return torch.arange(1 if self.rows_alike else self.visible_context.shape[0], device=self.device)

    def allowed(self, row: Tensor | int, query: Tensor, key: Tensor, window: int | None = None) -> Tensor:
        """The one mask rule, elementwise on packed indices. `row` counts the batch, 0 if rows are alike."""
        in_context = (key < self.context_length) & (key < self.visible_context[row, query])
        own = (self.completion_index[query] == self.completion_index[key]) & (key <= query)
        # Two context tokens share the "completion" -1; for them both conditions say the same thing.
        result = in_context | own
        if self.packed_documents is not None:
            result = result & (self.packed_documents[row, query] == self.packed_documents[row, key])
        if window is not None:
            result = result & (self.row_positions[row, query] - self.row_positions[row, key] < window)
        return result

    # ---- packing and unpacking -------------------------------------------------------------------------------------

    def pack(self, context_ids: Tensor, completions: Tensor) -> Tensor:
        """[b, T] and [b, B, n, G] -> [b, S]."""
        return torch.cat([context_ids, completions.flatten(1)], 1)

    def completions(self, packed: Tensor) -> Tensor:
        """What stands in the completion slots of [b, S, ...], as a view [b, B, n, G, ...]."""
        return packed[:, self.context_length :].unflatten(1, (self.num_anchors, self.samples, self.horizon))

    def before_anchors(self, hidden: Tensor) -> Tensor:
        """The rows of [b, T or more, H] that predict the first token of every completion: [b, B, H]."""
        rows = (self.anchors.expand(hidden.shape[0], -1) - 1)[..., None]
        return hidden.gather(1, rows.expand(-1, -1, hidden.shape[-1]))

    def completion_lengths(self, completions: Tensor, end_token_ids: Tensor) -> Tensor:
        """Tokens of [..., G] up to and including the first end token: [...]."""
        is_end = torch.isin(completions, end_token_ids.to(completions.device, non_blocking=True))
        ended_before = is_end.long().cumsum(-1) - is_end.long() > 0
        return (~ended_before).sum(-1)

    def check_batch(self, batch_size: int) -> None:
        if self.batch_size is not None and self.batch_size != batch_size:
            raise ValueError(
                f"the layout describes {self.batch_size} sequences but the batch has {batch_size}; "
                "build one layout per batch when documents, answers or lengths are given per row"
            )

    # ---- devices ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self._anchors.device

    def to(self, device: torch.device | str) -> PackedLayout:
        """The same layout with its tensors on `device` (itself if they are there already)."""
        device = torch.device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device, non_blocking=True))
        return moved

    def select_rows(self, rows: slice) -> PackedLayout:
        """The layout of some rows of the batch (itself if all rows of any batch are alike)."""
        if self.batch_size is None:
            return self
        part = copy.copy(self)
        for name in _PER_ROW:
            value = getattr(self, name)
            setattr(part, name, None if value is None else value[rows])
        part.batch_size = part._anchors.shape[0]
        return part

    def _squeeze(self, value: Tensor) -> Tensor:
        return value[0] if self.batch_size is None else value

    # ---- building --------------------------------------------------------------------------------------------------

    @classmethod
    def at_answer_starts(
        cls,
        answer_mask: Tensor,
        horizon: int,
        samples: int,
        document_ids: Tensor | None = None,
        lengths: Tensor | None = None,
        allow_empty: bool = False,
        round_up: bool = False,
        target_mask: Tensor | None = None,
    ) -> PackedLayout:
        """One anchor at the start of every answer: whole-answer rollouts, Algorithm 1 in its plain form.

        answer_mask: every stretch of it is taken for a whole answer; `anchors.whole_answers` leaves only such.
        round_up: make the number of places for anchors a power of two, so that batches have few different shapes, for
        code that is compiled for each of them.
        """
        T = answer_mask.shape[-1] if answer_mask.dim() else 0
        batch_size = common_batch_size(T, None, document_ids, answer_mask, lengths)
        R = batch_size or 1
        documents_RT, padding_RT = documents_and_padding(R, T, document_ids, lengths)
        answers_RT = answer_mask.bool().cpu().expand(R, T) & ~padding_RT
        anchors = answer_starts(answers_RT, documents_RT, round_up)
        if not allow_empty and not bool(anchors.any()):
            raise ValueError("no valid anchor: no answer starts after a context; answer_mask must mark the answers")
        anchors = anchors if batch_size else anchors[0]
        return cls(
            T,
            horizon,
            samples,
            anchors,
            document_ids,
            answer_mask,
            lengths,
            allow_empty=allow_empty,
            target_mask=target_mask,
        )


class StridedLayout(PackedLayout):
    """The paper's anchors: every `stride` tokens, B = floor((T - G) / s) of them, contexts x[:b*s], b = 1..B.

    With document ids, answers or lengths an anchor is dropped if its context is empty or its truth window
    crosses a document boundary, leaves the answer or reaches padding. Anchors that no row of the batch keeps are
    left out of `anchors`; where only some rows drop one, `anchor_mask` says so. `fixed_shape=True` leaves none
    out, so that shapes are the same for every batch.
    """

    def __init__(
        self,
        context_length: int,
        horizon: int,
        stride: int,
        samples: int,
        document_ids: Tensor | None = None,
        answer_mask: Tensor | None = None,
        lengths: Tensor | None = None,
        fixed_shape: bool = False,
        allow_empty: bool = False,
    ) -> None:
        at_least_one("context_length", context_length)
        at_least_one("horizon", horizon)
        self.stride = at_least_one("stride", stride)
        grid = (context_length - horizon) // stride
        if grid < 1:
            longest = context_length - stride
            way_out = f"use horizon<={longest} or longer sequences" if longest >= 1 else "use longer sequences"
            raise ValueError(
                f"horizon={horizon} with stride={stride} does not fit in sequences of {context_length} tokens; "
                + way_out
            )
        super().__init__(
            context_length,
            horizon,
            samples,
            torch.arange(1, grid + 1) * stride,
            document_ids,
            answer_mask,
            lengths,
            whole_truth=True,
            drop_unused=not fixed_shape,
            allow_empty=allow_empty,
        )

    @property
    def anchors(self) -> Tensor:
        """[B]: the grid is the same for all rows."""
        return self._anchors[0]
