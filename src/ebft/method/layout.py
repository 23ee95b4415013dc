"""Where everything stands in a packed sequence: anchors, order, position ids and the one mask rule.

One packed sequence holds T context tokens and, after them, n completions of G tokens for each of B anchors:

    [ x_0 ... x_{T-1} | anchor 1: n completions of G tokens | anchor 2: ... | ... | anchor B ]

so that all n*B completions share one copy of their context (paper, appendix on strided parallel rollouts; the
paper appends tokens step by step, here a completion is contiguous, which is what caches and block-sparse
kernels like). An anchor at a stands between x[a-1] and x[a]: its context is x[:a], its truth x[a:a+G].

Completions that begin alike need not be computed twice. `as_tree` gives the layout in which the distinct prefixes of
an anchor's completions are nodes of a tree, in depth-first order, and completions that agree share nodes:

    [ x_0 ... x_{T-1} | anchor 1: the nodes of its tree | anchor 2: ... | ... | anchor B | unused ]

Completions one after the other are the trees that part at the root.

What a token sees (`allowed` decides):
- a context token: the context tokens up to itself;
- a node at anchor a: the context tokens before a, its ancestors and itself: the nodes k with k <= q < subtree_end[k];
- with document ids, only tokens of its own document; with a window, only tokens less than that many positions
  back. Never another completion, never the truth after its anchor, unless the completion itself begins with it.

What a completion emits after an end token needs no mask of its own: nothing before it can see it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from ebft.method.anchors import (
    answer_starts,
    batch_size_of,
    document_starts,
    documents_and_padding,
    flags,
    latest,
    truth_lengths,
)
from ebft.method.tree import Tree, build_tree


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
        ends: BoolTensor [T] or [b, T], end tokens; if given, a truth ends with its first one, and is then kept although
            it is short.
        drop_unused: leave out anchors that no row keeps.
        allow_empty: let a batch pass in which no row keeps any anchor, instead of raising an error.

    Attributes:
        predicted: of a tree, bool [b, B, n, G], tokens whose predecessor is in the packed sequence; None: all are.
        predicting_rows: of a tree, how many tokens of the batch predict something, at most.

    What the mask rule compares, for attention kernels; R is b, or 1 if nothing differs by row:
        visible_context: [R, S], how many leading context tokens a packed token may look back to.
        subtree_end: [R, S], one past the last token that sees it as one of its own completion; 0 for context tokens.
        packed_documents: [R, S], or None without documents.
        row_positions: [R, S].
        has_token: bool [R, S], False at padding and at places of a row whose tree is smaller than others.
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
        ends: Tensor | None = None,
    ) -> None:
        T, self.context_length, self.horizon, self.samples = context_length, context_length, horizon, samples
        self.batch_size = batch_size_of(lengths, document_ids, answer_mask, target_mask, ends, anchors)
        # Inside, every tensor has a row dimension R: one row if nothing differs by row, else the batch's.
        R = self.batch_size or 1
        documents_RT, padding_RT = documents_and_padding(R, T, document_ids, lengths)
        starts_RT, answers_RT = document_starts(documents_RT), flags(answer_mask, R, T)
        anchors_RB = anchors.to("cpu", torch.long).expand(R, -1)
        inside_RB = (anchors_RB >= 1) & (anchors_RB < T)
        anchors_RB = torch.where(inside_RB, anchors_RB, 1).clamp(max=T - 1)

        # As a rollout does, a truth ends with its first end token: the next one begins another. (The first token of all
        # begins a document anyway.)
        ends_RT = torch.zeros(R, T, dtype=torch.bool) if ends is None else flags(ends, R, T)
        breaks_RT = starts_RT | ends_RT.roll(1, 1)
        truth_RB = truth_lengths(breaks_RT, padding_RT | ~answers_RT).gather(1, anchors_RB).clamp(max=horizon)
        last_RB = (anchors_RB + truth_RB - 1).clamp(min=0, max=T - 1)
        enough_RB = truth_RB >= (horizon if whole_truth else 1)
        enough_RB |= (truth_RB >= 1) & ends_RT.gather(1, last_RB)
        valid_RB = inside_RB & ~starts_RT.gather(1, anchors_RB) & enough_RB  # a start has no context
        if not allow_empty and not bool(valid_RB.any()):
            raise ValueError("no valid anchor: no truth fits; use a smaller horizon or stride, or longer texts")
        used = valid_RB.any(0) if drop_unused else slice(None)

        self._anchors = anchors_RB[:, used]
        self._valid = valid_RB[:, used]
        self._truths = torch.where(valid_RB, truth_RB, 0)[:, used]
        self._truth_mask = ~starts_RT & ~padding_RT & (answers_RT if target_mask is None else flags(target_mask, R, T))
        # True if all rows of a batch see the same: attention then needs one mask for all of them. With documents,
        # lengths matter too, because padding tokens are documents of their own.
        same_documents = document_ids is None or (document_ids.dim() == 1 and lengths is None)
        self.rows_alike = anchors.dim() == 1 and same_documents
        # Plain integers, so that attention over chunks of anchors can leave out the context after them without
        # asking the device.
        self.furthest_context: list[int] = self._anchors.amax(0).tolist()
        self._slots: Tensor | None = None
        self._completions: Tensor | None = None
        self.predicted: Tensor | None = None
        self.predicting_rows: int | None = None
        # What context tokens have; completions come behind.
        self.has_token = ~padding_RT
        self.visible_context = torch.arange(1, T + 1).expand(R, -1)
        self.subtree_end = torch.zeros(R, T, dtype=torch.long)
        self.row_positions = torch.arange(T).expand(R, -1)
        self.packed_documents: Tensor | None = None
        if document_ids is not None:
            self.row_positions, self.packed_documents = self.row_positions - latest(starts_RT), documents_RT
        self._add_completions()

    def _add_completions(self, tree: Tree | None = None, nodes: int = 0) -> None:
        """Put completions behind the context tokens, one after the other, or a tree with room for `nodes` of them."""
        T, G, n, device = self.context_length, self.horizon, self.samples, self.device
        R, B = self._anchors.shape
        self.num_anchors, self.packed_length = B, T + (B * n * G if tree is None else nodes)
        anchors, steps = self._anchors[..., None, None], torch.arange(G, device=device)
        itself: Tensor | int = 0
        if tree is None:
            visible, end = anchors, (torch.arange(B * n).view(B, n, 1) + 1) * G + T
        else:
            visible, end = anchors + tree.in_context[..., None], tree.end + T
            place = torch.where(tree.is_node, tree.nodes, nodes).flatten(1)  # what is no node goes past the end
            # A place without a node sees itself and nothing else, so that its softmax is not empty.
            itself = torch.arange(T + 1, T + nodes + 2, device=device)

        def packed(per_token: Tensor, of_completions: Tensor, elsewhere: Tensor | int = 0) -> Tensor:
            """Of the context [R, T or more] and of completions [R, B, n, G] -> [R, S]; elsewhere: without a node."""
            tokens = of_completions.expand(R, B, n, G).flatten(1)
            if tree is not None:
                empty = torch.zeros(R, nodes + 1, dtype=torch.long, device=device) + elsewhere
                tokens = empty.scatter(1, place, tokens)[:, :nodes]
            return torch.cat([per_token[:, :T].expand(R, -1), tokens], 1)

        def at_anchors(per_token: Tensor) -> Tensor:
            """What a token has, of the last context token of every anchor: [R, B, 1, 1]."""
            return per_token[:, :T].expand(R, -1).gather(1, self._anchors - 1)[..., None, None]

        self.has_token = packed(self.has_token, torch.ones_like(anchors)).bool()
        self.visible_context = packed(self.visible_context, visible)
        self.subtree_end = packed(self.subtree_end, end, itself)
        self.row_positions = packed(self.row_positions, at_anchors(self.row_positions) + 1 + steps)
        if self.packed_documents is not None:
            self.packed_documents = packed(self.packed_documents, at_anchors(self.packed_documents))

    # ---- what a layout tells ---------------------------------------------------------------------------------------

    @property
    def anchors(self) -> Tensor:
        """[B] or [b, B]; empty places hold 1 and are False in `anchor_mask`."""
        return self._squeeze(self._anchors)

    @property
    def anchor_mask(self) -> Tensor:
        """bool [B] or [b, B], False where a row drops the anchor."""
        return self._squeeze(self._valid)

    @property
    def truth_lengths(self) -> Tensor:
        """[B] or [b, B], tokens of truth per anchor: G where the window is whole, 0 where dropped."""
        return self._squeeze(self._truths)

    @property
    def truth_mask(self) -> Tensor:
        """bool [T] or [b, T], tokens that count as targets of the cross-entropy."""
        return self._squeeze(self._truth_mask)

    @property
    def position_ids(self) -> Tensor:
        return self._squeeze(self.row_positions)

    @property
    def completion_slots(self) -> Tensor:
        """LongTensor [B, n, G]: where token g of every sample of every anchor stands in the packed sequence. Of a tree
        [b, B, n, G]: completions that agree share slots; what the tree leaves out has slot 0."""
        if self._slots is not None:
            return self._slots
        slots = torch.arange(self.context_length, self.packed_length, device=self.device)
        return slots.view(self.num_anchors, self.samples, self.horizon)

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
        """The rows that have masks of their own."""
        return torch.arange(1 if self.rows_alike else self.visible_context.shape[0], device=self.device)

    def allowed(self, row: Tensor | int, query: Tensor, key: Tensor, window: int | None = None) -> Tensor:
        """The one mask rule, elementwise on packed indices. `row` counts the batch, 0 if rows are alike."""
        # No token looks at more context than there is, and no context token is anybody's ancestor.
        own = (key <= query) & (query < self.subtree_end[row, key])
        result = (key < self.visible_context[row, query]) | own
        if self.packed_documents is not None:
            result = result & (self.packed_documents[row, query] == self.packed_documents[row, key])
        if window is not None:
            result = result & (self.row_positions[row, query] - self.row_positions[row, key] < window)
        return result

    # ---- packing and unpacking -------------------------------------------------------------------------------------

    def pack(self, context_ids: Tensor, completions: Tensor) -> Tensor:
        """[b, T] and [b, B, n, G] -> [b, S]."""
        if self._slots is None:
            return torch.cat([context_ids, completions.flatten(1)], 1)
        packed = context_ids.new_zeros(context_ids.shape[0], self.packed_length)
        packed.scatter_(1, self._slots.flatten(1), completions.flatten(1))
        packed[:, : self.context_length] = context_ids  # whatever was put in slot 0
        return packed

    def completions(self, packed: Tensor) -> Tensor:
        """What stands in the completion slots of [b, S, ...]: [b, B, n, G, ...], as a view. Of a tree its completions,
        the tokens too that it leaves out."""
        if self._completions is not None:
            return self._completions
        return packed[:, self.context_length :].unflatten(1, (self.num_anchors, self.samples, self.horizon))

    @property
    def predictor_slots(self) -> Tensor:
        """[1 or b, B, n, G]: the slot whose hidden state predicts every token: the one before it, for a first token the
        last of its context."""
        slots = self.completion_slots.expand(len(self._anchors), -1, -1, -1)
        before = (self._anchors[..., None, None] - 1).expand(-1, -1, self.samples, -1)
        return torch.cat([before, slots[..., :-1]], -1)

    def truths(self, context_ids: Tensor) -> Tensor:
        """What follows every anchor in contexts [b, T]: [b, B, G]; -1 past the end of a short truth."""
        steps = torch.arange(self.horizon, device=self.device)
        inside = steps < self._truths[..., None]
        slots = torch.where(inside, self._anchors[..., None] + steps, 0).expand(len(context_ids), -1, -1)
        return torch.where(inside, context_ids.gather(1, slots.flatten(1)).view(slots.shape), -1)

    def before_anchors(self, hidden: Tensor) -> Tensor:
        """The rows of [b, T or more, H] that predict the first token of every completion: [b, B, H]."""
        rows = (self.anchors.expand(hidden.shape[0], -1) - 1)[..., None]
        return hidden.gather(1, rows.expand(-1, -1, hidden.shape[-1]))

    def completion_lengths(self, completions: Tensor, end_token_ids: Tensor) -> Tensor:
        """Tokens of [..., G] up to and including the first end token: [...]."""
        is_end = torch.isin(completions, end_token_ids.to(completions.device, non_blocking=True))
        ended_before = is_end.long().cumsum(-1) - is_end.long() > 0
        return (~ended_before).sum(-1)

    # ---- trees -----------------------------------------------------------------------------------------------------

    def as_tree(
        self, completions: Tensor, context_ids: Tensor | None = None, held: Tensor | None = None
    ) -> PackedLayout:
        """The layout in which these completions [b, B, n, G] share the tokens that they begin with.

        Args:
            context_ids: [b, T]; given, completions share tokens with the truth as well: those stand in the context.
            held: [b, B, n], leading tokens of each completion to have in it, by default all; -1 leaves a completion
                out, and its first token is then not predicted either. Anchors that a row drops are always left out.

        Asks the device how many nodes there are. `tree_of` and `with_tree` are the two halves around that question.
        """
        tree = self.tree_of(completions, context_ids, held)
        nodes, predicting = torch.stack([tree.counts, tree.predicting]).tolist()
        return self.with_tree(tree, max(nodes), sum(predicting))

    def tree_of(self, completions: Tensor, context_ids: Tensor | None = None, held: Tensor | None = None) -> Tree:
        b = len(completions)
        if held is None:
            held = torch.full(completions.shape[:3], self.horizon, device=completions.device)
        held = torch.where(self.anchor_mask.expand(b, -1)[..., None], held, -1)
        return build_tree(completions, held, None if context_ids is None else self.truths(context_ids))

    def with_tree(self, tree: Tree, nodes: int, predicting_rows: int) -> PackedLayout:
        """This layout with the nodes of a tree instead of completions, room for `nodes` of them in a row, and for so
        many tokens of all rows together that predict something."""
        b = len(tree.nodes)
        packed = self._changed(lambda value: value.expand(b, -1))
        packed.batch_size, packed.rows_alike = b, False
        packed._completions, packed.predicted = tree.completions, tree.predicted
        packed.predicting_rows = predicting_rows
        steps = torch.arange(self.horizon, device=self.device)
        in_context = torch.where(steps < tree.in_context[..., None], packed._anchors[..., None, None] + steps, 0)
        packed._slots = torch.where(tree.is_node, tree.nodes + self.context_length, in_context)
        packed._add_completions(tree, nodes)
        return packed

    # ---- devices ---------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self._anchors.device

    def to(self, device: torch.device | str) -> PackedLayout:
        """The same layout with its tensors on `device` (itself if they are there already)."""
        device = torch.device(device)
        if device.type == self.device.type and device.index in (None, self.device.index):
            return self
        return self._changed(lambda value: value.to(device, non_blocking=True))

    def select_rows(self, rows: slice | Tensor) -> PackedLayout:
        """The layout of some rows of the batch (itself if all rows of any batch are alike)."""
        if self.batch_size is None:
            return self
        part = self._changed(lambda value: value[rows])
        part.batch_size = len(part._anchors)
        return part

    def _changed(self, change: Callable[[Tensor], Tensor]) -> PackedLayout:
        """With other tensors, all of which have a dimension of rows first."""
        changed = copy.copy(self)
        vars(changed).update({name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)})
        return changed

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
        T, batch_size = answer_mask.shape[-1], batch_size_of(lengths, document_ids, answer_mask)
        R = batch_size or 1
        documents_RT, padding_RT = documents_and_padding(R, T, document_ids, lengths)
        anchors = answer_starts(flags(answer_mask, R, T) & ~padding_RT, documents_RT, round_up)
        anchors = anchors if batch_size else anchors[0]
        given = (T, horizon, samples, anchors, document_ids, answer_mask, lengths)
        return cls(*given, allow_empty=allow_empty, target_mask=target_mask)


class StridedLayout(PackedLayout):
    """The paper's anchors: every `stride` tokens, B = floor((T - G) / s) of them, contexts x[:b*s], b = 1..B.

    With document ids, answers or lengths an anchor is dropped if its context is empty or its truth window
    crosses a document boundary, leaves the answer or reaches padding. Anchors that no row of the batch keeps are
    left out of `anchors`; where only some rows drop one, `anchor_mask` says so. `fixed_shape=True` leaves none
    out, so that shapes are the same for every batch.

    Dropping them drops every place from which the text would end sooner than a rollout does: nothing shows the model
    that ending is right there. With `ends` (True at end tokens) a truth ends with the first of them, as a rollout does,
    and is kept, short.
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
        ends: Tensor | None = None,
    ) -> None:
        grid = torch.arange(max(context_length - horizon + 1, 0))[stride::stride]
        given = (context_length, horizon, samples, grid, document_ids, answer_mask, lengths)
        whole_truth, drop_unused = True, not fixed_shape
        super().__init__(*given, whole_truth, drop_unused, allow_empty, ends=ends)

    @property
    def anchors(self) -> Tensor:
        """[B]: the grid is the same for all rows."""
        return self._anchors[0]
