"""vLLM behind the interface of `generate`, for those who have it installed (the extra `vllm`).

Seeds are per completion, so that what is sampled does not depend on what else runs; vLLM's own random numbers are not
ours, so the same seed gives other texts than transformers does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ebft.errors import ConfigError, how_to_install
from ebft.evaluate.generation import GREEDY, Fitted, GenerationSettings, Generator, Made, Wanted, prompt_seed

REQUESTS_AT_ONCE = 1024  # vLLM batches by itself; this is how often finished completions reach the disk


class VLLMGenerator(Generator):
    """
    Args:
        model: folder or hub name, of the base model if there is an adapter, which is a folder.
        options: further arguments of `vllm.LLM`.
    """

    def __init__(self, model: str, tokenizer: PreTrainedTokenizerBase, adapter: str | None, **options: Any) -> None:
        try:
            import vllm
        except ImportError:
            raise ConfigError(f"backend=vllm needs vLLM; {how_to_install('vllm')}") from None
        self.vllm, self.adapter = vllm, None
        self.engine = vllm.LLM(model=model, enable_lora=adapter is not None, **options)
        super().__init__(tokenizer, int(self.engine.llm_engine.model_config.max_model_len))
        if adapter is not None:
            from vllm.lora.request import LoRARequest

            self.adapter = LoRARequest("adapter", 1, adapter)

    def stream(self, prompts: Sequence[str], settings: GenerationSettings, wanted: Wanted, keys: Sequence[str]) -> Made:
        def ask(asked: Sequence[tuple[int, int, Fitted]], stop: Sequence[str]) -> list[Any]:
            parameters = [
                self.vllm.SamplingParams(
                    temperature=0.0 if sample == GREEDY else settings.temperature,
                    top_p=1.0 if sample == GREEDY or settings.top_p is None else settings.top_p,
                    max_tokens=prompt.room,
                    stop=list(stop) or None,
                    # Beside the end tokens that vLLM finds itself.
                    stop_token_ids=None if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id],
                    seed=(prompt_seed(settings.seed, keys[place]) + sample) % 2**63,
                )
                for place, sample, prompt in asked
            ]
            tokens = [{"prompt_token_ids": prompt.tokens} for _, _, prompt in asked]
            found = self.engine.generate(tokens, parameters, use_tqdm=False, lora_request=self.adapter)
            return [output.outputs[0] for output in found]

        every = self.fit_all(prompts, settings, wanted, keys)
        for start in range(0, len(every), REQUESTS_AT_ONCE):
            asked = every[start : start + REQUESTS_AT_ONCE]
            found = ask(asked, settings.stop)
            stopped = [isinstance(one.stop_reason, str) for one in found]
            # vLLM does not know that a line break may belong to the prompt. Answers that it stopped there are made
            # again, the same ones by their seeds, without stop strings, and cut here.
            early = [n for n, one in enumerate(found) if stopped[n] and len(one.text) < len(asked[n][2].whitespace)]
            for n, one in zip(early, ask([asked[n] for n in early], ()) if early else [], strict=True):
                found[n] = one
            batch = []
            for (place, sample, prompt), one, stop in zip(asked, found, stopped, strict=True):
                finish = "length" if one.finish_reason == "length" else "stop" if stop else "end"
                batch.append((place, sample, prompt.completion(one.text, finish, len(one.token_ids), settings)))
            yield batch
