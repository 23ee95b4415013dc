"""An answer in the terminal while the model writes it. What stands there in the end is what `generate` returns."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from transformers.generation.streamers import BaseStreamer

from ebft.runtime.messages import printable
from ebft.tasks.generation import continuation


class LiveAnswer(BaseStreamer):
    """transformers gives it the prompt first, then each token.

    Not its own TextStreamer, which decodes tokens without those before them: some tokenizers then lose a space.
    """

    def __init__(self, tokenizer: Any, end_token_ids: Collection[int]) -> None:
        self.tokenizer, self.ends = tokenizer, end_token_ids
        self.prompt: list[int] | None = None
        self.tokens: list[int] = []
        self.shown = ""

    def put(self, value: Any) -> None:
        tokens = value.flatten().tolist()
        if self.prompt is None:
            self.prompt = tokens
            return
        self.tokens += [token for token in tokens if token not in self.ends]
        # The bytes of a character may come in several tokens: until the last, it is decoded as a replacement.
        self._show(continuation(self.tokenizer, self.prompt, self.tokens).rstrip("\ufffd"))

    def end(self) -> None:
        text = continuation(self.tokenizer, self.prompt or [], self.tokens)
        self._show(text)
        # A tokenizer that decodes what it had decoded otherwise by now: the whole answer, once more.
        print("" if self.shown == text else f"\n{printable(text)}")

    def _show(self, text: str) -> None:
        if text.startswith(self.shown):
            sys.stdout.write(printable(text[len(self.shown) :]))
            sys.stdout.flush()
            self.shown = text
