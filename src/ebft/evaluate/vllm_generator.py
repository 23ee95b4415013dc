"""vLLM behind the interface of `generate`, for those who have it installed (the extra `vllm`).

Seeds are per completion, so that what is sampled does not depend on what else runs; vLLM's own random numbers are not
ours, so the same seed gives other texts than transformers does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ebft.errors import ConfigError, how_to_install
from ebft.evaluate.generation import GREEDY, Completion, Fitted, GenerationSettings, Generator, prompt_seed

REQUESTS_AT_ONCE = 1024  # vLLM batches by itself; this is how often finished completions reach the disk


class VLLMGenerator(Generator):
    """
    Args:
        model: folder or hub name, of the base model if there is an adapter.
        tokenizer: the model's tokenizer.
        adapter: folder of a LoRA adapter.
        end_token_ids: tokens that end a completion, beside those that vLLM finds itself.
        options: further arguments of `vllm.LLM`.
    """

    def __init__(
        self,
        model: str,
        tokenizer: Any,
        adapter: str | None = None,
        end_token_ids: Sequence[int] = (),
        **options: Any,
    ) -> None:
        try:
            import vllm
        except ImportError:
            raise ConfigError(f"backend=vllm needs vLLM; {how_to_install('vllm')}") from None
        self.vllm = vllm
        self.engine = vllm.LLM(model=model, enable_lora=adapter is not None, **options)
        super().__init__(tokenizer, int(self.engine.llm_engine.model_config.max_model_len))
        self.end_token_ids = list(end_token_ids)
        self.adapter = None
        if adapter is not None:
            from vllm.lora.request import LoRARequest

            self.adapter = LoRARequest("adapter", 1, adapter)

    def stream(
        self,
        prompts: Sequence[str],
        settings: GenerationSettings,
        wanted: Sequence[tuple[int, int]],
        keys: Sequence[str],
    ) -> Iterator[list[tuple[int, int, Completion]]]:
        fitted, order = self.fit_all(prompts, settings, wanted, keys)
        for start in range(0, len(order), REQUESTS_AT_ONCE):
            batch = order[start : start + REQUESTS_AT_ONCE]
            outputs = self._ask(batch, fitted, settings, keys, settings.stop)
            # vLLM does not know that a line break may belong to the prompt. Such answers are made again, the same
            # ones by their seeds, without stop strings, and cut here.
            early = [
                pair
                for pair, made in zip(batch, outputs, strict=True)
                if isinstance(made.stop_reason, str) and _before_the_start(fitted[pair[0]].whitespace, made.text)
            ]
            again = dict(zip(early, self._ask(early, fitted, settings, keys, ()) if early else (), strict=True))
            yield [
                (*pair, self._read(fitted[pair[0]], again.get(pair, made), settings))
                for pair, made in zip(batch, outputs, strict=True)
            ]

    def _ask(
        self,
        batch: Sequence[tuple[int, int]],
        fitted: dict[int, Fitted],
        settings: GenerationSettings,
        keys: Sequence[str],
        stop: Sequence[str],
    ) -> list[Any]:
        parameters = [
            self.vllm.SamplingParams(
                temperature=0.0 if sample == GREEDY else settings.temperature,
                top_p=1.0 if sample == GREEDY or settings.top_p is None else settings.top_p,
                max_tokens=fitted[place].room,
                stop=list(stop) or None,
                stop_token_ids=self.end_token_ids or None,
                seed=(prompt_seed(settings.seed, keys[place]) + sample) % 2**63,
            )
            for place, sample in batch
        ]
        outputs = self.engine.generate(
            [{"prompt_token_ids": fitted[place].tokens} for place, _ in batch],
            parameters,
            use_tqdm=False,
            lora_request=self.adapter,
        )
        return [output.outputs[0] for output in outputs]

    @staticmethod
    def _read(prompt: Fitted, made: Any, settings: GenerationSettings) -> Completion:
        tokens = len(made.token_ids)
        cut = prompt.cut(made.text, settings.stop)
        if cut is not None:
            return Completion(cut, "stop", tokens, prompt.truncated)
        if made.finish_reason == "length":
            finish = "length" if prompt.room == settings.max_new_tokens else "context"
        else:
            finish = "stop" if isinstance(made.stop_reason, str) else "end"
        return Completion(prompt.restore(made.text), finish, tokens, prompt.truncated)


def _before_the_start(whitespace: str, text: str) -> bool:
    """Whether a text that ended at a stop string did so inside the whitespace that its prompt lost."""
    return len(text) < len(whitespace) and whitespace.startswith(text)
