"""The method as pure tensor code: nothing here imports transformers or any other part of ebft.

Read in this order, which is the order data flows in: layout (anchors, packed order, mask rule), tree, sampling,
rewards, losses and cross_entropy; measures stand at the end. This file, which imports no torch, names the choices that
settings have.

Shape suffixes used throughout: b batch, T context tokens, B anchors, n samples, G tokens of a completion
(the horizon), S = T + B*n*G packed tokens, D features, H the model's hidden width, V vocabulary, R rows.
"""

from typing import Literal

Whitening = Literal["none", "plain", "paper", "both", "truth", "reference"]
Anchors = Literal["strided", "answer_start"]
Pooling = Literal["last", "mean"]
Normalize = Literal["per_layer", "joint"]
Backend = Literal["auto", "sdpa", "flex"]
