"""What a run asks of its tokenizer and sequences, whoever trains or measures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebft.config.training import EBFTConfig
from ebft.data.packing import SequenceDataset, collate
from ebft.errors import ConfigError, DataError
from ebft.iteration import make_layout


def pad_token_id(tokenizer: Any) -> int:
    """What stands in the place of padding. Which one does not matter: padding is known by position, never by value."""
    if tokenizer is None:
        return 0
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id


def end_token_ids(tokenizer: Any, document_masks: bool, device: torch.device | str = "cpu") -> Tensor | None:
    """What ends a completion; without document masks nothing does, as in the released code."""
    if tokenizer is None or not document_masks:
        return None
    return torch.tensor([tokenizer.eos_token_id], device=device)


def check_sequences(dataset: SequenceDataset, args: EBFTConfig) -> None:
    """At least one anchor must fit somewhere."""
    if dataset.context_length != args.context_length:
        raise ConfigError(
            f"the dataset has sequences of {dataset.context_length} tokens, context_length is {args.context_length}"
        )
    if len(dataset) == 0:
        raise DataError("the dataset holds no tokens")
    needed = 2 if args.anchors == "answer_start" else args.horizon + 1
    longest = int(dataset.lengths.max())
    if args.packing and not args.document_masks:
        longest = min(dataset.total_tokens, args.context_length)
    if longest < needed:
        raise DataError(
            f"all documents are shorter than one anchor needs: the longest has {longest} tokens, "
            f"horizon={args.horizon} needs {needed}; use a smaller horizon, longer documents, or "
            "packing without document_masks"
        )
    for row in range(min(len(dataset), 2000)):
        batch = collate([dataset[row]])
        if bool(make_layout(batch["on_host"], args, args.samples).anchor_mask.any()):
            return
    raise DataError(
        "no valid anchor in the data: every truth window leaves its document or its answer; use a smaller horizon or "
        "stride, or answer_only=false"
    )
