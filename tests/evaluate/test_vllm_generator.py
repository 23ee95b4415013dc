from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ebft.evaluate.generation import GenerationSettings
from ebft.evaluate.vllm_generator import VLLMGenerator
from tests.tiny_tokenizer import byte_tokenizer


def test_vllm_requests_against_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not vLLM itself: that requests hold what the settings say, and answers are read as they are meant. The stand-in
    stops as vLLM does, at the first stop string wherever it is."""
    texts = {"a": "\n    return x\n//", "b": "\n// first\nsecond\n// third", "c": "\n\n//", "d": " said\n// so"}
    texts |= {"e": "and an end", "f" * 46: "this fills the context"}
    asked: list[tuple[str, Any]] = []

    class LLM:
        def __init__(self, **options: Any) -> None:
            self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=50))

        def generate(self, prompts: list[Any], parameters: list[Any], **options: Any) -> list[Any]:
            found = []
            for prompt, p in zip(prompts, parameters, strict=True):
                name = byte_tokenizer().decode(prompt["prompt_token_ids"])
                asked.append((name, p))
                text, place = texts[name], texts[name].find("\n//") if p.stop else -1
                ending = ("stop", "\n//") if place >= 0 else ("stop", None) if name == "e" else ("length", None)
                made = {"text": text[:place] if place >= 0 else text, "token_ids": [1, 2]}
                made |= {"finish_reason": ending[0], "stop_reason": ending[1]}
                found.append(SimpleNamespace(outputs=[SimpleNamespace(**made)]))
            return found

    stand_in = ModuleType("vllm")
    stand_in.LLM, stand_in.SamplingParams = LLM, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    settings = GenerationSettings(max_new_tokens=10, temperature=0.6, samples=2, stop=("\n//",), seed=1)
    prompts = ["a\n", "b\n", "c\n", "d ", "e", "f" * 46]
    found = VLLMGenerator("m", byte_tokenizer(), None).complete(prompts, settings)
    assert [(of[0].text, of[0].finish) for of in found] == [
        ("    return x", "stop"),
        ("// first\nsecond", "stop"),
        ("", "stop"),
        ("said", "stop"),
        ("and an end", "end"),
        ("this fills the context", "context"),
    ]
    assert [name for name, p in asked if p.stop is None] == ["b", "b"], "made again: ended in its prompt's whitespace"
    assert len({p.seed for _, p in asked}) == 12, "every completion has its own seed"
    longest = asked[0][1]
    assert (longest.max_tokens, longest.stop, longest.stop_token_ids, longest.temperature) == (4, ["\n//"], [256], 0.6)
