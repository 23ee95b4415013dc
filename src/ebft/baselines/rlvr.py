"""`ebft rlvr`: TRL's GRPOTrainer on the prompts of the documents that EBFT trains on, with verifiable rewards.

TRL's dataset holds a prompt and the number of its row; the rows themselves, with whatever columns they have, stay with
the judge that hands them to the reward functions.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig, GRPOTrainer

from ebft.baselines import trl_trainers
from ebft.baselines.rewards import COUNTS, RewardFunction, make_rewards
from ebft.config.recipe import Recipe
from ebft.config.training import RLVRSettings
from ebft.data.packing import DocumentIndex
from ebft.data.row_format import Row
from ebft.data.rows import read_rows
from ebft.errors import ConfigError, DataError
from ebft.runtime import processes
from ebft.runtime.files import read_json, write_json
from ebft.train.report import table_cell
from ebft.train.sequences import Loaded, warn

PROMPT_CHARACTERS = 1000  # of a prompt in the table of samples
COUNTS_FILE = "reward_counts.json"  # in every checkpoint
Prompt = str | list[Row]  # a text, or messages; so are answers


class MeasuredRLVR(trl_trainers.Baseline, GRPOTrainer):
    method, title = "rlvr", "reinforcement learning from verifiable rewards (TRL's GRPOTrainer)"
    shown: ClassVar = {"reward": "reward", "reward_counts/timeouts": "timeouts", "reward_counts/raised": "raised"}
    judge: Judge
    args: Any

    @classmethod
    def prepare(cls, loaded: Loaded) -> tuple[int, Callable[[], MeasuredRLVR]]:
        """Rows are answers. TRL leaves out prompts that do not fill a step; where there are too few, it would train for
        no step at all."""
        recipe, settings = loaded.recipe, loaded.recipe.training
        assert isinstance(settings, RLVRSettings)
        trl_trainers.check(recipe)
        arguments = trl_trainers.trl_arguments(
            GRPOConfig,
            settings,
            num_generations=settings.generations,
            num_generations_eval=1,  # TRL's own evaluation, which is never run
            temperature=settings.generation_temperature,
            max_completion_length=settings.max_new_tokens,
            beta=settings.kl_coefficient,
            use_vllm=settings.use_vllm,
            reward_weights=settings.reward_weights or None,
        )
        rewards = make_rewards(settings, recipe.data.columns, Counter())
        questions = load_questions(recipe, loaded.train_set.index, rewards, loaded.tokenizer)
        needed = int(arguments.generation_batch_size or 0) // settings.generations
        if len(questions) < needed:
            ways_out = "lower gradient_accumulation_steps or per_device_train_batch_size, or give more data"
            raise ConfigError(f"a step draws answers to {needed} prompts, but there are {len(questions)}; {ways_out}")
        judge = Judge(rewards, questions, recipe.data.row_format.answers_begin_with)
        prompts = Dataset.from_dict({"prompt": [q.prompt for q in questions], "row": list(range(len(questions)))})

        def build() -> MeasuredRLVR:
            trainer = cls.made(loaded, arguments, prompts, reward_funcs=judge.functions())
            trainer.judge, judge.trainer = judge, trainer
            return trainer

        answers = len(questions) * settings.generations
        return answers - answers % settings.rows_per_step, build

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self.sampler: Any = super()._get_train_sampler(dataset)
        return self.sampler

    def sample_lines(self) -> list[str]:
        return self.judge.table()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        super().on_train_begin(*args, **kwargs)
        if processes.rank() == 0:
            self.judge.counts.update(read_json(self.checkpoint / COUNTS_FILE) or {})
        # TRL shuffles every epoch with what is left of one generator: those of finished epochs are drawn again.
        for _epoch in range(int((self.state.epoch or 0) + 1e-6)):
            torch.randperm(self.sampler.num_samples, generator=self.sampler.generator)

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        counts = self.judge.totals()  # all processes take part
        if processes.rank() == 0:
            write_json(self.checkpoint / COUNTS_FILE, counts)
        super().on_save(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs.update({f"reward_counts/{name}": number for name, number in self.judge.totals().items()})
        super().log(logs, start_time)


@dataclass
class Question:
    """A row of the dataset, its prompt, and the prompt's length in tokens."""

    row: Row
    prompt: Prompt
    tokens: int


class Judge:
    """Hands answers to the reward functions, keeps the last ones for the table of samples, counts costs.

    answers_begin_with: by prompt_separator; rewards do not see it.
    """

    trainer: MeasuredRLVR  # which is made of the reward functions

    def __init__(
        self, rewards: Sequence[RewardFunction], questions: Sequence[Question], answers_begin_with: str = ""
    ) -> None:
        self.rewards, self.questions, self.answers_begin_with = rewards, questions, answers_begin_with
        self.counts: Counter[str] = rewards[0].counts  # in checkpoints, so that a resumed run counts on
        self.rows: list[int] = []  # of the last answers
        self.texts: list[str] = []
        self.scores: dict[str, list[float]] = {}

    def totals(self) -> dict[str, int]:
        """What was counted by all processes."""
        return self._sums({name: self.counts[name] for name in COUNTS})

    def _sums(self, counts: dict[str, int]) -> dict[str, int]:
        """Over all processes."""
        device = self.trainer.args.device
        tensors = {name: torch.tensor(float(count), device=device) for name, count in counts.items()}
        return {name: int(total) for name, total in processes.sum_over_processes(tensors).items()}

    def functions(self) -> list[Any]:
        """One for each reward, as TRL calls them, the first one first."""

        def by(reward: RewardFunction) -> Callable[..., list[float]]:
            def score(completions: list[Prompt], completion_ids: list[Any], row: list[int], **_: object) -> list[float]:
                if reward is self.rewards[0]:
                    self._count(row, completion_ids)
                    self.rows, self.texts = row, [text_of(c).removeprefix(self.answers_begin_with) for c in completions]
                self.scores[reward.name] = reward.score(self.texts, [self.questions[number].row for number in row])
                return self.scores[reward.name]

            score.__name__ = reward.name
            return score

        return [by(reward) for reward in self.rewards]

    def _count(self, rows: Sequence[int], completion_ids: list[list[int]]) -> None:
        """Drawing an answer is a pass over it and its prompt; then the updates. One more pass each: with a KL, by the
        frozen model; where answers are not used up in one step, or come from vLLM, for their log-probs when drawn."""
        counter, args = self.trainer.flops, self.trainer.args
        here = {"prompted": sum(self.questions[n].tokens for n in rows), "generated": sum(map(len, completion_ids))}
        prompted, generated = self._sums(here).values()
        kept = args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations) != 0
        kept = kept or (args.use_vllm and args.vllm_importance_sampling_correction)
        flops = counter.over(prompted + generated, generated)  # logits are needed for answers only
        flops *= 1 + bool(args.beta) + kept + counter.update * args.num_iterations
        self.trainer.spend(tokens=prompted / args.num_generations, generated_tokens=generated, flops=flops)

    def table(self) -> list[str]:
        """A prompt, the answers drawn to it and their rewards."""
        if not self.rows:
            return []
        first = self.rows[0]
        asked = text_of(self.questions[first].prompt, "\n")
        lines = [f"Prompt: {table_cell(asked[-PROMPT_CHARACTERS:])}", ""]
        lines += [f"| answer | {' | '.join(self.scores)} |", "|---" * (1 + len(self.scores)) + "|"]
        for number, text, *scores in zip(self.rows, self.texts, *self.scores.values(), strict=True):
            if number == first:
                lines.append(f"| {table_cell(text)} | {' | '.join(f'{score:.3f}' for score in scores)} |")
        return [*lines, ""]


def text_of(given: Prompt, between: str = "") -> str:
    return given if isinstance(given, str) else between.join(str(turn.get("content") or "") for turn in given)


def load_questions(
    recipe: Recipe, index: DocumentIndex, rewards: Sequence[RewardFunction], tokenizer: PreTrainedTokenizerBase
) -> list[Question]:
    """The rows behind the documents of an index, in its order: the same split as everywhere else. Those that can be
    rewarded and whose prompts are not too long; says how many are left out, and why."""
    settings, data = recipe.training, recipe.data
    assert isinstance(settings, RLVRSettings)
    found, left_out = dict[int, Question](), list[str]()
    for store, source in enumerate(data.dataset):
        mine = (index.store == store).nonzero()[0]
        places = dict(zip(index.number[mine].tolist(), mine.tolist(), strict=True))
        rows = enumerate(itertools.islice(read_rows(source, data.dataset_split), data.limit_documents))
        for number, row in ((number, dict(row)) for number, row in rows if number in places):
            where = f"{source}: row {number + 1}"
            prompt = data.row_format.prompt_of(row)
            if not prompt:
                names = f"{data.row_format.prompt!r} or {data.row_format.messages!r}, which rlvr needs"
                has = ", ".join(map(repr, row)) or "none"
                way = "name yours with prompt_column, messages_column or prompt_template"
                raise DataError(f"{where} has no prompt in a column {names}; it has {has}; {way}")
            if isinstance(prompt, list):
                prompt = [{"role": turn["role"], "content": turn.get("content")} for turn in prompt]
            length = _tokens(prompt, tokenizer)
            reasons = [why for reward in rewards if (why := reward.unusable(row, where))]
            if length > settings.max_prompt_tokens:
                reasons.append(f"prompts longer than max_prompt_tokens={settings.max_prompt_tokens}")
            if not reasons:
                found[places[number]] = Question(row, prompt, length)
            left_out += reasons[:1]
    if not found:
        raise DataError(f"none of the {len(index)} documents can be used: {[*left_out, 'there are none'][0]}")
    if left_out:
        warn(f"{len(left_out)} of {len(index)} documents are left out; the first: {left_out[0]}")
    return [found[place] for place in sorted(found)]


def _tokens(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])
