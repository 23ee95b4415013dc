"""A few held-out prompts, answered by the model before and after training: so that a person can look at the change.

Both times with the same random numbers, at the temperature of the rollouts.
"""

from __future__ import annotations

from typing import Any

from ebft.data.packing import SequenceDataset
from ebft.evaluate.generation import GenerationSettings, TransformersGenerator
from ebft.runtime import processes

PROMPT_TOKENS, ANSWER_TOKENS = 64, 24
SHOWN = 100  # characters of a line


class HeldOutPrompts:
    def __init__(self, dataset: SequenceDataset, tokenizer: Any, count: int, temperature: float) -> None:
        self.tokenizer = tokenizer
        self.settings = GenerationSettings(ANSWER_TOKENS, temperature, prompt_style="rendered", too_long="truncate")
        index, found = dataset.index, []
        for place in range(0, len(index), max(1, len(index) // max(count, 1))):
            store, number = index.stores[index.store[place]], int(index.number[place])
            span = slice(int(store.offsets[number]), int(store.offsets[number + 1]))
            found.append(_divided(store.tokens[span].tolist(), store.answers[span].tolist()))
        parts = [part for part in found if part is not None][:count]
        self.prompts = [tokenizer.decode(prompt) for prompt, _ in parts]
        self.truths = [tokenizer.decode(truth, skip_special_tokens=True) for _, truth in parts]

    def answers(self, trainer: Any) -> list[str]:
        """By the model as it is now; the first process writes them, and all get them."""
        texts = None
        if processes.rank() == 0 and self.prompts:
            generator = TransformersGenerator(trainer.compute_model(), self.tokenizer, len(self.prompts))
            with trainer.compute_loss_context_manager():
                texts = [found[0] for found in generator.generate(self.prompts, self.settings)]
        return processes.from_first(texts or [])


def _divided(tokens: list[int], answers: list[int]) -> tuple[list[int], list[int]] | None:
    """The end of the text before the first answer, and the answer; a text that is all answer is cut in its middle."""
    start = answers.index(1) if 1 in answers else 0
    if start == 0:
        start = min(PROMPT_TOKENS, len(tokens) // 2)
    if start == 0:
        return None
    return tokens[max(0, start - PROMPT_TOKENS) : start], tokens[start : start + ANSWER_TOKENS]


def lines(found: dict[str, Any]) -> list[str]:
    """What a person reads: the prompt, how the text goes on, and the two answers, each on a line."""
    shown = []
    for number, prompt in enumerate(found["prompts"]):
        shown.append(f"...{_cut(prompt, from_end=True)}")
        for title in ("text", "before", "after"):
            shown.append(f"    {title:<6}  {_cut(found[title][number])}")
    return shown


def _cut(text: str, from_end: bool = False) -> str:
    shown = repr(text)[1:-1]
    return shown[-SHOWN:] if from_end else shown[:SHOWN]
