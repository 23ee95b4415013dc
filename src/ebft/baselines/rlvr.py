"""`ebft rlvr`: TRL's GRPOTrainer on the prompts of the documents that EBFT trains on, with verifiable rewards.

TRL's dataset holds a prompt and the number of its row; the rows themselves, with whatever columns they have, stay with
the judge that hands them to the reward functions.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from ebft.baselines import trl_trainers
from ebft.baselines.rewards import COUNTS, RewardFunction, make_rewards, why_not_rewarded
from ebft.config.baselines import RLVRSettings
from ebft.config.recipe import Recipe
from ebft.data.packing import DocumentIndex
from ebft.data.row_format import Row, RowFormat
from ebft.data.rows import read_rows
from ebft.errors import ConfigError, DataError, TrainingDiverged
from ebft.loading import peft_config
from ebft.runtime import processes
from ebft.runtime.files import read_json, write_json
from ebft.train.costs import CostTracker
from ebft.train.report import table_cell, write_page
from ebft.train.run import TrainingMethod
from ebft.train.sequences import Loaded, describe

logger = logging.getLogger(__name__)

PROMPT_CHARACTERS = 1000  # of a prompt in the table of samples
COUNTS_FILE = "reward_counts.json"  # in every checkpoint


@dataclass
class RLVRArguments(GRPOConfig):
    save_log_spaced: bool = False
    eval_tasks_every: int | None = None


class MeasuredRLVR(trl_trainers.Measured, GRPOTrainer):
    def __init__(self, *args: Any, judge: Judge, **kwargs: Any) -> None:
        self.costs, self.judge = CostTracker(), judge
        judge.trainer = self
        super().__init__(*args, **{**kwargs, "reward_funcs": judge.functions()})

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        # Before answers are drawn: on a GPU, probabilities that are no numbers end the process.
        self.deferred_checks.run(wait=True)
        try:
            return super().training_step(model, inputs, num_items_in_batch)
        except RuntimeError as error:
            if "probability tensor contains" not in str(error):
                raise
            step = self.state.global_step + 1
            raise TrainingDiverged(
                f"no answer can be drawn at step {step}: probabilities are not numbers; try a lower learning_rate"
            ) from None

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self.sampler: Any = super()._get_train_sampler(dataset)
        return self.sampler

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs.update({f"reward_counts/{name}": number for name, number in self.judge.totals().items()})
        super().log(logs, start_time)


@dataclass
class Prompt:
    """A row of the dataset, its prompt (a text, or messages), and the prompt's length in tokens."""

    row: Row
    prompt: Any
    tokens: int


class Judge:
    """Hands answers to the reward functions, keeps the last ones for the table of samples, counts costs.

    answers_begin_with: by prompt_separator; rewards do not see it.
    """

    def __init__(self, rewards: Sequence[RewardFunction], prompts: list[Prompt], answers_begin_with: str = "") -> None:
        self.rewards, self.prompts, self.answers_begin_with = rewards, prompts, answers_begin_with
        self.counts: Counter[str] = rewards[0].counts
        self.trainer: Any = None
        self.last: dict[str, Any] = {}

    def totals(self) -> dict[str, int]:
        """What was counted by all processes."""
        counts = {name: torch.tensor(float(self.counts[name]), device=self.trainer.args.device) for name in COUNTS}
        return {name: int(count) for name, count in processes.sum_over_processes(counts).items()}

    def functions(self) -> list[Callable[..., list[float]]]:
        """One for each reward, as TRL calls them."""
        return [self._function(place, reward) for place, reward in enumerate(self.rewards)]

    def _function(self, place: int, reward: RewardFunction) -> Callable[..., list[float]]:
        def score(completions: list[Any], completion_ids: list[Any], row: list[int], **_: Any) -> list[float]:
            texts = [text_of(completion).removeprefix(self.answers_begin_with) for completion in completions]
            if place == 0:
                self._count(row, completion_ids)
                self.last = {"row": row, "texts": texts, "rewards": {}}
            scores = reward.score(texts, [self.prompts[number].row for number in row])
            self.last["rewards"][reward.name] = scores
            return scores

        score.__name__ = reward.name
        return score

    def _count(self, numbers: Sequence[int], completion_ids: Sequence[Any]) -> None:
        """Drawing an answer is a pass over it and its prompt; then the updates. One more pass each: with a KL, by the
        frozen model; where answers are not used up in one step, or come from vLLM, for their log-probs when drawn."""
        counter, args = self.trainer.flops, self.trainer.args
        here = (sum(self.prompts[number].tokens for number in numbers), sum(map(len, completion_ids)))
        counts = {str(n): torch.tensor(float(count), device=args.device) for n, count in enumerate(here)}
        prompted, generated = (float(count) for count in processes.sum_over_processes(counts).values())
        kept = args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations) != 0
        kept = kept or (args.use_vllm and args.vllm_importance_sampling_correction)
        # Logits are needed for answers only.
        flops = counter.over(prompted + generated, generated)
        self.trainer.costs.add(
            tokens=prompted / args.num_generations,
            generated_tokens=generated,
            flops=flops * (1 + bool(args.beta) + kept + counter.update * args.num_iterations),
        )

    def table(self, step: int) -> list[str]:
        """A prompt, the answers drawn to it and their rewards."""
        first, names = self.last["row"][0], list(self.last["rewards"])
        prompt = self.prompts[first].prompt
        asked = prompt if isinstance(prompt, str) else "\n".join(str(turn.get("content")) for turn in prompt)
        lines = [f"# Samples at step {step}", "", f"Prompt: {table_cell(asked[-PROMPT_CHARACTERS:])}", ""]
        lines += [f"| answer | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
        for place, number in enumerate(self.last["row"]):
            if number == first:
                scores = " | ".join(f"{self.last['rewards'][name][place]:.3f}" for name in names)
                lines.append(f"| {table_cell(self.last['texts'][place])} | {scores} |")
        return [*lines, ""]


class RewardState(TrainerCallback):
    """Keeps what the judge counts in checkpoints, so that a resumed run counts on, and writes its tables of samples."""

    def __init__(self, judge: Judge, samples_every: int) -> None:
        self.judge, self.every = judge, samples_every

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved = read_json(Path(args.output_dir) / f"checkpoint-{state.global_step}" / COUNTS_FILE)
        if state.is_world_process_zero and state.global_step and saved is not None:
            self.judge.counts.update(saved)
        # TRL shuffles every epoch with what is left of one generator: those of finished epochs are drawn again.
        sampler = self.judge.trainer.sampler
        for _ in range(int(state.epoch + 1e-6)):
            torch.randperm(sampler.num_samples, generator=sampler.generator)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        due = self.every and (state.global_step % self.every == 0 or state.global_step == 1)
        if due and self.judge.last and state.is_world_process_zero:
            write_page(Path(args.output_dir), state.global_step, self.judge.table(state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        counts = self.judge.totals()  # all processes take part
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.exists():
            write_json(folder / COUNTS_FILE, counts)


def text_of(completion: Any) -> str:
    """TRL gives a text, or the turns of a conversation."""
    if isinstance(completion, str):
        return completion
    return "".join(str(turn.get("content") or "") for turn in completion)


def prompt_of(row: Row, row_format: RowFormat) -> Any:
    """The prompt of a row: a text, or the messages before the last answer."""
    prompt = row_format.prompt_of(row)
    if isinstance(prompt, list) and prompt:
        return [{"role": turn["role"], "content": turn.get("content")} for turn in prompt]
    if isinstance(prompt, str) and prompt:
        return prompt
    raise DataError(
        f"rlvr needs a prompt in the column {row_format.prompt!r} or {row_format.messages!r}; the row has "
        f"{', '.join(map(repr, row)) or 'none'}. Name yours with prompt_column or messages_column, or set "
        "prompt_template"
    )


def load_prompts(
    recipe: Recipe, index: DocumentIndex, rewards: Sequence[RewardFunction], tokenizer: Any
) -> list[Prompt]:
    """The rows behind the documents of an index, in its order: the same split as everywhere else. Prompts that can be
    rewarded and are not too long; says how many are left out, and why."""
    settings: Any = recipe.training
    found: dict[int, Prompt] = {}
    left_out: Counter[str] = Counter()
    for store, source in enumerate(recipe.data.dataset):
        mine = (index.store == store).nonzero()[0]
        places = dict(zip(index.number[mine].tolist(), mine.tolist(), strict=True))
        rows = itertools.islice(read_rows(source, recipe.data.dataset_split), recipe.data.limit_documents)
        for number, row in enumerate(rows):
            if number not in places:
                continue
            where = f"{source}: row {number + 1}"
            try:
                prompt = prompt_of(dict(row), recipe.data.row_format)
            except DataError as error:
                raise DataError(f"{where}: {error}") from None
            if (reason := why_not_rewarded(rewards, row, where)) is not None:
                left_out[reason] += 1
            elif (length := _tokens(prompt, tokenizer)) > settings.max_prompt_tokens:
                left_out[f"prompts longer than max_prompt_tokens={settings.max_prompt_tokens}"] += 1
            else:
                found[places[number]] = Prompt(dict(row), prompt, length)
    reason = next(iter(left_out), "there are none")
    if not found:
        raise DataError(f"none of the {len(index)} documents can be used: {reason}")
    if left_out and processes.rank() == 0:
        logger.warning(f"{left_out.total()} of {len(index)} documents are left out; the first: {reason}")
    if len({isinstance(prompt.prompt, str) for prompt in found.values()}) > 1:
        raise DataError("some prompts are texts and some are messages; train on one kind at a time")
    return [found[place] for place in sorted(found)]


def _tokens(prompt: Any, tokenizer: Any) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    if getattr(tokenizer, "chat_template", None) is None:
        raise DataError("the tokenizer has no chat template, which 'messages' needs; use text prompts")
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _arguments(settings: Any) -> Any:
    return trl_trainers.trl_arguments(
        RLVRArguments,
        settings,
        num_generations=settings.generations,
        num_generations_eval=1,  # TRL's own evaluation, which is never run
        temperature=settings.generation_temperature,
        max_completion_length=settings.max_new_tokens,
        beta=settings.kl_coefficient,
        use_vllm=settings.use_vllm,
        reward_weights=settings.reward_weights or None,
    )


def _prepare(loaded: Loaded) -> tuple[Judge, Any]:
    """The judge and TRL's arguments; TRL would train for no step at all where there are too few prompts."""
    recipe, settings = loaded.recipe, loaded.recipe.training
    assert isinstance(settings, RLVRSettings)
    trl_trainers.check(recipe)
    if settings.use_vllm and find_spec("vllm") is None:
        raise ConfigError("use_vllm=true needs vllm; install it with `pip install trl[vllm]`, or leave it out")
    arguments = _arguments(settings)
    rewards = make_rewards(settings, recipe.data.columns, Counter())
    prompts = load_prompts(recipe, loaded.train_set.index, rewards, loaded.tokenizer)
    needed = arguments.generation_batch_size // settings.generations
    if len(prompts) < needed:
        raise ConfigError(
            f"a step draws answers to {needed} prompts, but there are {len(prompts)}; lower "
            "gradient_accumulation_steps or per_device_train_batch_size, or give more data"
        )
    return Judge(rewards, prompts, recipe.data.row_format.answers_begin_with), arguments


def build(loaded: Loaded) -> MeasuredRLVR:
    tokenizer = loaded.tokenizer
    judge, arguments = _prepare(loaded)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # what TRL would take; padding is masked by length
    texts = [prompt.prompt for prompt in judge.prompts]
    prompts = Dataset.from_dict({"prompt": texts, "row": list(range(len(texts)))})
    trainer = MeasuredRLVR(
        model=loaded.model,
        judge=judge,
        args=arguments,
        train_dataset=prompts,
        # Never looked at: `evaluate` validates as EBFT does. transformers wants one where evaluation is asked for.
        eval_dataset=None if loaded.validation_set is None else prompts.select([0]),
        processing_class=tokenizer,
        peft_config=peft_config(loaded.recipe),
    )
    return trl_trainers.equip(trainer, loaded, "rlvr", RewardState(judge, loaded.recipe.training.samples_every))


def plan(loaded: Loaded) -> list[str]:
    settings: Any = loaded.recipe.training
    prompts, per_step = _prepare(loaded)[0].prompts, settings.rows_per_step // settings.generations
    lines = {
        "prompts": f"{len(prompts):,}, {sum(prompt.tokens for prompt in prompts) / len(prompts):.1f} tokens on average",
        "rewards": ", ".join(settings.rewards),
        "answers per step": f"{settings.rows_per_step}: {settings.generations} to each of {per_step} prompts, at "
        f"most {settings.max_new_tokens} tokens at temperature {settings.generation_temperature}",
    }
    whole_steps = len(prompts) // per_step * per_step  # TRL leaves out what does not fill a step
    return describe(loaded, whole_steps, per_step, lines)


METHOD = TrainingMethod(
    "rlvr",
    "reinforcement learning from verifiable rewards (TRL's GRPOTrainer)",
    {"reward": "reward", "reward_counts/timeouts": "timeouts", "reward_counts/raised": "raised"},
    build,
    plan,
)
