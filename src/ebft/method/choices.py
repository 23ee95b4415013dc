"""The choices that the method leaves, by name. Apart from the code, so that settings are checked before torch loads."""

from __future__ import annotations

from typing import Literal

Whitening = Literal["none", "plain", "paper", "both", "truth", "reference"]
Anchors = Literal["strided", "answer_start"]
Pooling = Literal["last", "mean"]
Normalize = Literal["per_layer", "joint"]
Backend = Literal["auto", "sdpa", "flex"]
