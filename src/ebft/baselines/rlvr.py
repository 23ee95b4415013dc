"""`ebft rlvr`: TRL's GRPOTrainer on the prompts of the documents that EBFT trains on, with verifiable rewards.

TRL's dataset holds a prompt and the number of its row; the rows themselves, with whatever columns they have, stay with
the judge that hands them to the reward functions.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from ebft.baselines import trl_trainers
from ebft.baselines.prompts import Prompts, load_prompts
from ebft.baselines.verifiable_rewards import COUNTS, RewardFunction, make_rewards
from ebft.config.baseline_settings import RLVRSettings
from ebft.config.recipe import Recipe
from ebft.errors import ConfigError, TrainingDiverged
from ebft.loading import peft_config
from ebft.runtime import processes
from ebft.train.costs import CostTracker
from ebft.train.dry_run import columns, steps_of
from ebft.train.samples import table_cell
from ebft.train.training_method import Loaded, TrainingMethod

logger = logging.getLogger(__name__)

PROMPT_CHARACTERS = 1000  # of a prompt in the table of samples


@dataclass
class RLVRArguments(GRPOConfig):
    save_log_spaced: bool = False
    eval_tasks_every: int | None = None


class MeasuredRLVR(trl_trainers.Measured, GRPOTrainer):
    def __init__(self, *args: Any, judge: Judge, **kwargs: Any) -> None:
        self.costs, self.judge = CostTracker(), judge
        judge.trainer = self
        functions: list[Any] = [*judge.functions()]
        super().__init__(*args, **{**kwargs, "reward_funcs": functions})

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


class OrderOfEpochs(TrainerCallback):
    """TRL shuffles every epoch with what is left of one generator: a resumed run draws those of finished epochs."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        sampler = self.trainer.sampler
        for _ in range(int(state.epoch + 1e-6)):
            torch.randperm(sampler.num_samples, generator=sampler.generator)


class Judge:
    """Hands answers to the reward functions, keeps the last ones for the table of samples, counts costs."""

    def __init__(self, rewards: Sequence[RewardFunction], prompts: Prompts, settings: RLVRSettings) -> None:
        self.rewards, self.prompts, self.settings = rewards, prompts, settings
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
            begin = self.prompts.answers_begin_with
            texts = [text_of(completion).removeprefix(begin) for completion in completions]
            if place == 0:
                self._count(row, completion_ids)
                self.last = {"row": row, "texts": texts, "rewards": {}}
            scores = reward.score(texts, [self.prompts.rows[number] for number in row])
            self.last["rewards"][reward.name] = scores
            return scores

        score.__name__ = reward.name
        return score

    def _count(self, numbers: Sequence[int], completion_ids: Sequence[Any]) -> None:
        """Drawing an answer is a pass over it and its prompt; then the updates. One more pass each: with a KL, by the
        frozen model; where answers are not used up in one step, or come from vLLM, for their log-probs when drawn."""
        counter, args = self.trainer.flops, self.trainer.args
        counts = {
            "prompted": sum(self.prompts.lengths[number] for number in numbers),
            "generated": sum(len(ids) for ids in completion_ids),
        }
        here = {name: torch.tensor(float(count), device=args.device) for name, count in counts.items()}
        prompted, generated = (float(count) for count in processes.sum_over_processes(here).values())
        kept = args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations) != 0
        kept = kept or (args.use_vllm and args.vllm_importance_sampling_correction)
        # Logits are needed for answers only.
        flops = counter.over(prompted + generated, generated)
        self.trainer.costs.add(
            tokens=prompted / args.num_generations,
            generated_tokens=generated,
            flops=flops * (1 + bool(args.beta) + kept + counter.update * args.num_iterations),
        )


class RewardCounts(TrainerCallback):
    """Keeps what the judge counts in checkpoints, so that a resumed run counts on."""

    FILE = "reward_counts.json"

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / self.FILE
        if state.is_world_process_zero and state.global_step and file.exists():
            self.judge.counts.update(json.loads(file.read_text()))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        counts = self.judge.totals()  # all processes take part
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.exists():
            (folder / self.FILE).write_text(json.dumps(counts))


class AnswerSamples(TrainerCallback):
    """A table of a prompt, the answers drawn to it and their rewards, every `samples_every` steps."""

    def __init__(self, judge: Judge, every: int) -> None:
        self.judge, self.every = judge, every

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        due = self.every and (state.global_step % self.every == 0 or state.global_step == 1)
        if due and self.judge.last and state.is_world_process_zero:
            folder = Path(args.output_dir) / "samples"
            folder.mkdir(parents=True, exist_ok=True)
            text = self.table(state.global_step)
            (folder / f"step-{state.global_step:06d}.md").write_text(text, encoding="utf-8")

    def table(self, step: int) -> str:
        last = self.judge.last
        first = last["row"][0]
        shown = [place for place, number in enumerate(last["row"]) if number == first]
        names = list(last["rewards"])
        prompt = self.judge.prompts.prompts[first]
        asked = prompt if isinstance(prompt, str) else "\n".join(str(turn.get("content")) for turn in prompt)
        lines = [
            f"# Samples at step {step}",
            "",
            f"Prompt: {table_cell(asked[-PROMPT_CHARACTERS:])}",
            "",
            f"| answer | {' | '.join(names)} |",
            "|---" * (1 + len(names)) + "|",
        ]
        for place in shown:
            scores = " | ".join(f"{last['rewards'][name][place]:.3f}" for name in names)
            lines.append(f"| {table_cell(last['texts'][place])} | {scores} |")
        return "\n".join(lines) + "\n"


def text_of(completion: Any) -> str:
    """TRL gives a text, or the turns of a conversation."""
    if isinstance(completion, str):
        return completion
    return "".join(str(turn.get("content") or "") for turn in completion)


def _prepare(loaded: Loaded) -> Judge:
    recipe, settings = loaded.recipe, loaded.recipe.training
    assert isinstance(settings, RLVRSettings)
    trl_trainers.check(recipe)
    rewards = make_rewards(settings, recipe.data.columns, Counter())
    return Judge(rewards, load_prompts(recipe, loaded.train_set.index, rewards, loaded.tokenizer), settings)


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
        save_log_spaced=settings.save_log_spaced,
        eval_tasks_every=settings.eval_tasks_every,
    )


def build(loaded: Loaded) -> MeasuredRLVR:
    recipe, tokenizer, validation_set = loaded.recipe, loaded.tokenizer, loaded.validation_set
    settings: Any = recipe.training
    if settings.use_vllm:
        from importlib.util import find_spec

        if find_spec("vllm") is None:
            raise ConfigError("use_vllm=true needs vllm; install it with `pip install trl[vllm]`, or leave it out")
    judge = _prepare(loaded)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # what TRL would take; padding is masked by length
    arguments = _arguments(settings)
    prompts = judge.prompts.dataset()
    _check_enough(len(prompts), arguments.generation_batch_size // arguments.num_generations, settings)
    trainer = MeasuredRLVR(
        model=loaded.model,
        judge=judge,
        args=arguments,
        train_dataset=prompts,
        # Never looked at: `evaluate` validates as EBFT does. transformers wants one where evaluation is asked for.
        eval_dataset=None if validation_set is None else prompts.select([0]),
        processing_class=tokenizer,
        peft_config=peft_config(recipe),
    )
    trl_trainers.equip(trainer, recipe, validation_set, tokenizer, RewardCounts(judge))
    trainer.add_callback(AnswerSamples(judge, settings.samples_every))
    trainer.add_callback(OrderOfEpochs(trainer))
    return trainer


def _check_enough(prompts: int, needed: int, settings: Any) -> None:
    """TRL would train for no step at all."""
    if prompts < needed:
        fitting = max(1, settings.gradient_accumulation_steps * prompts // needed)
        raise ConfigError(
            f"a step draws answers to {needed} prompts, but there are {prompts}; lower gradient_accumulation_steps "
            f"(now {settings.gradient_accumulation_steps}, {fitting} may do) or per_device_train_batch_size, or give "
            "more data"
        )


def plan(loaded: Loaded) -> list[str]:
    settings: Any = loaded.recipe.training
    _arguments(settings)  # for its errors
    prompts = _prepare(loaded).prompts
    per_step = settings.rows_per_step // settings.generations
    _check_enough(len(prompts.rows), per_step, settings)
    an_epoch = len(prompts.rows) // per_step  # TRL leaves out what does not fill a step
    lines = columns(
        {
            "model": f"{loaded.recipe.model.model}, {sum(p.numel() for p in loaded.model.parameters()):,} parameters",
            "prompts": f"{len(prompts.rows):,} of {len(loaded.train_set.index):,} documents, "
            f"{sum(prompts.lengths) / len(prompts.lengths):.1f} tokens on average",
            "rewards": ", ".join(settings.rewards),
            "answers per step": f"{settings.rows_per_step}: {settings.generations} to each of {per_step} prompts, at "
            f"most {settings.max_new_tokens} tokens at temperature {settings.generation_temperature}",
            "validation sequences": "none" if loaded.validation_set is None else f"{len(loaded.validation_set):,}",
            "steps": f"{steps_of(settings, an_epoch):,} ({an_epoch:,} an epoch)",
        }
    )
    return [*lines, "", "One prompt:", f"  {prompts.prompts[0]!r}"[:2000]]


def details(recipe: Recipe) -> str:
    settings: Any = recipe.training
    return (
        f"{settings.rows_per_step // settings.generations} prompts with {settings.generations} answers each, at most "
        f"{settings.max_new_tokens} tokens at temperature {settings.generation_temperature}; rewards "
        f"{', '.join(settings.rewards)}, KL coefficient {settings.kl_coefficient}, learning rate "
        f"{settings.learning_rate}, seed {settings.seed}."
    )


METHOD = TrainingMethod(
    "rlvr",
    "reinforcement learning from verifiable rewards (TRL's GRPOTrainer)",
    "[ebft, trl, rlvr]",
    {"reward": "reward", "reward_counts/timeouts": "timeouts", "reward_counts/raised": "raised"},
    False,
    build,
    plan,
    details,
)
