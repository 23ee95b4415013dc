from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ebft.errors import ConfigError
from ebft.evaluate.generation import GenerationSettings
from ebft.evaluate.vllm_generator import VLLMGenerator
from tests.tiny_tokenizer import byte_tokenizer


def test_vllm_says_when_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r'backend=vllm needs vLLM; install it with `pip install "\.\[vllm\]"`'):
        VLLMGenerator("somewhere", byte_tokenizer())


def test_vllm_requests_against_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not vLLM itself: that the requests hold what the settings say and the answers are read as they are meant."""
    asked: list[Any] = []

    class LLM:
        def __init__(self, **options: Any) -> None:
            self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=30))

        def generate(self, prompts: list[Any], parameters: list[Any], **options: Any) -> list[Any]:
            asked.extend(zip(prompts, parameters, strict=True))
            ends = {10: ("length", None), 8: ("length", None), 4: ("stop", "\n"), 2: ("stop", None)}
            return [
                SimpleNamespace(
                    outputs=[SimpleNamespace(text=str(p.seed), finish_reason=f, stop_reason=s, token_ids=[1, 2])]
                )
                for prompt, p in zip(prompts, parameters, strict=True)
                for f, s in [ends[{22: 8, 1: 10, 4: 4, 2: 2}[len(prompt["prompt_token_ids"])]]]
            ]

    stand_in = ModuleType("vllm")
    stand_in.LLM, stand_in.SamplingParams = LLM, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    generator = VLLMGenerator("m", byte_tokenizer(), end_token_ids=[256])
    settings = GenerationSettings(max_new_tokens=10, temperature=0.6, samples=2, stop=("\n",), seed=1)
    prompts = ["x" * 22, "a", "bbbb", "cc"]
    wanted = [(place, sample) for place in range(4) for sample in range(2)]
    found = {(p, s): c for batch in generator.stream(prompts, settings, wanted, prompts) for p, s, c in batch}
    assert [found[place, 0].finish for place in range(4)] == ["context", "length", "stop", "end"]
    assert len({completion.text for completion in found.values()}) == 8, "every completion has its own seed"
    first = next(p for prompt, p in asked if len(prompt["prompt_token_ids"]) == 22)
    assert (first.max_tokens, first.stop, first.stop_token_ids, first.temperature) == (8, ["\n"], [256], 0.6)


def test_vllm_prompts_lose_their_last_whitespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in stops as vLLM does, at the first stop string wherever it is."""
    texts = {"a": "\n    return x\n//", "b": "\n// first\nsecond\n// third", "c": "\n\n//", "d": " said\n// so"}
    asked: list[tuple[str, Any]] = []

    class LLM:
        def __init__(self, **options: Any) -> None:
            self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=50))

        def generate(self, prompts: list[Any], parameters: list[Any], **options: Any) -> list[Any]:
            found = []
            for prompt, p in zip(prompts, parameters, strict=True):
                name = byte_tokenizer().decode(prompt["prompt_token_ids"])
                asked.append((name, p.stop))
                text, place = texts[name], texts[name].find("\n//") if p.stop else -1
                ending = ("stop", "\n//") if place >= 0 else ("length", None)
                made = {"text": text[:place] if place >= 0 else text, "token_ids": list(text)}
                made |= {"finish_reason": ending[0], "stop_reason": ending[1]}
                found.append(SimpleNamespace(outputs=[SimpleNamespace(**made)]))
            return found

    stand_in = ModuleType("vllm")
    stand_in.LLM, stand_in.SamplingParams = LLM, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    settings = GenerationSettings(max_new_tokens=10, stop=("\n//",))
    prompts = ["a\n", "b\n", "c\n", "d "]
    generator = VLLMGenerator("m", byte_tokenizer())
    assert generator.generate(prompts, settings) == [["    return x"], ["// first\nsecond"], [""], ["said"]]
    assert asked[4:] == [("b", None)], "only an answer that ended in its prompt's whitespace is made again"
