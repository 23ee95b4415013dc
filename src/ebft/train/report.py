"""What a run leaves for people: tables of samples, answers before and after, curves, and the final model's card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ebft.config.recipe import Recipe
from ebft.data.packing import SequenceDataset
from ebft.evaluate.generation import GenerationSettings, TransformersGenerator
from ebft.method.measures import NAMES, along_training, with_error
from ebft.runtime import processes
from ebft.runtime.files import read_jsonl
from ebft.train.run_folder import Results
from ebft.version import __version__

if TYPE_CHECKING:
    from ebft.train.measured import Measured

CONTEXT_TOKENS, ANCHORS = 24, 4  # shown in a table of samples
PROMPT_TOKENS, ANSWER_TOKENS = 64, 24  # of a held-out prompt, and of the answers to it
SHOWN = 100  # characters of a line
CURVES = "curves.png"
PANELS = {
    "eval_cfm": "feature-matching loss (validation)",
    "eval_cross_entropy": "cross-entropy (validation)",
    "reward": "reward",
    "ebft/cfm": "feature-matching loss (training)",
    "ebft/distinct": "share of distinct completions",
    "grad_norm": "gradient norm",
}
TITLES = ("on held-out sequences", "before", "after", "change")


def sample_lines(example: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase | None) -> list[str]:
    """A few anchors of one sequence, spread over it, with truth, completions and rewards."""
    places = example["anchor_mask"].nonzero().flatten().tolist()
    lines = []
    for place in places[:: max(1, len(places) // ANCHORS)][:ANCHORS]:
        anchor, length = int(example["anchors"][place]), int(example["truth_lengths"][place])
        context, truth = example["input_ids"][:anchor], example["input_ids"][anchor : anchor + length]
        dots = "..." if anchor > CONTEXT_TOKENS else ""
        lines += [f"## Anchor {anchor}", "", f"Context: {dots}{_text(context[-CONTEXT_TOKENS:], tokenizer)}", ""]
        lines += ["| | text | alignment | diversity | advantage |", "|---|---|---|---|---|"]
        lines += [f"| truth | {_text(truth, tokenizer)} | | | |"]
        for sample, completion in enumerate(example["completions"][place]):
            numbers = (example[name][place, sample] for name in ("alignment", "diversity", "advantages"))
            cells = " | ".join(f"{float(x):+z.3f}" for x in numbers)
            lines.append(f"| sample {sample + 1} | {_text(completion, tokenizer)} | {cells} |")
        lines.append("")
    return lines


def _text(tokens: Tensor, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """The tokens as text, or as numbers without a tokenizer."""
    if tokenizer is None:
        return " ".join(map(str, tokens.tolist()))
    return table_cell(str(tokenizer.decode(tokens)))


def table_cell(text: str) -> str:
    """Any text as code on one line, safe inside a Markdown table."""
    return "`" + repr(text)[1:-1].replace("|", "\\|").replace("`", "'") + "`"


def held_out_prompts(dataset: SequenceDataset, tokenizer: PreTrainedTokenizerBase, count: int) -> dict[str, list[str]]:
    """Prompts, and how their text goes on; a text that is all answer is cut in its middle."""
    prompts, texts = [], []
    for place in range(0, len(dataset.index), max(1, len(dataset.index) // count)):
        store, inside = dataset.index.where(place)
        tokens, answers = store.tokens[inside].tolist(), store.answers[inside].tolist()
        if start := (answers.index(1) if 1 in answers else 0) or min(PROMPT_TOKENS, len(tokens) // 2):
            prompts.append(str(tokenizer.decode(tokens[max(0, start - PROMPT_TOKENS) : start])))
            texts.append(str(tokenizer.decode(tokens[start : start + ANSWER_TOKENS], skip_special_tokens=True)))
    return {"prompts": prompts[:count], "text": texts[:count]}


def answers_to(prompts: Sequence[str], trainer: Measured) -> list[str]:
    """By the model as it is now, always with the same random numbers; the first process writes, and all get them."""
    texts: list[str] = []
    if processes.rank() == 0 and prompts:
        temperature = trainer.settings.temperature
        settings = GenerationSettings(ANSWER_TOKENS, temperature, prompt_style="rendered", too_long="truncate")
        with trainer.computing() as model:
            generator = TransformersGenerator(model, trainer.processing_class, len(prompts))
            texts = [found[0].text for found in generator.complete(prompts, settings)]
    return processes.from_first(texts)


def answer_lines(found: dict[str, list[str]]) -> list[str]:
    """What a person reads: the prompt, how the text goes on, and the two answers, each on a line."""
    shown = []
    for number, prompt in enumerate(found["prompts"]):
        shown.append(f"...{repr(prompt)[1:-1][-SHOWN:]}")
        for name in ("text", "before", "after"):
            shown.append(f"    {name:<6}  {repr(found[name][number])[1:-1][:SHOWN]}")
    return shown


def before_and_after(results: Results) -> list[tuple[str, ...]]:
    """Rows under TITLES: the metrics that a table shows. The error of a change is that of the paired difference."""
    found = [results.get(when, {}) for when in ("before", "after", "change")]
    return [
        (name, *(with_error(f.get(f"eval_{k}"), f.get(f"eval_{k}_se"), "+" if f is found[2] else "") for f in found))
        for k, name in NAMES.items()
        if f"eval_{k}" in found[1]
    ]


def curves(run: Path) -> Path | None:
    """`curves.png`, one panel per metric, with standard errors where there are any."""
    entries = read_jsonl(run / "metrics.jsonl")
    panels = {name: points for name in PANELS if (points := along_training(entries, name))}
    if not panels:
        return None
    from matplotlib.figure import Figure

    rows, columns = -(-len(panels) // 3), min(3, len(panels))
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows))
    for place, (name, points) in enumerate(panels.items(), 1):
        axis: Any = figure.add_subplot(rows, columns, place)
        values = [entry[name] for entry in points.values()]
        errors = [entry.get(f"{name}_se") or 0.0 for entry in points.values()]
        axis.errorbar(list(points), values, errors, marker="o" if len(points) < 20 else None, markersize=3)
        axis.set_title(PANELS[name], fontsize=10)
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(run / CURVES, dpi=120)
    return run / CURVES


def card(title: str, made: str, recipe: str, header: Sequence[str] = (), results: Results | None = None) -> str:
    """A model's README.md: how it was made, what was measured, and the recipe."""
    lines = ["---", "tags: [ebft]", *header, "---", "", f"# {title}", "", made, ""]
    if results and (rows := before_and_after(results)):
        lines += [f"| {' | '.join(row)} |" for row in (TITLES, ("---",) * len(TITLES), *rows)]
        lines += ["", "± is the standard error over sequences; that of a change is of the differences by sequence.", ""]
    if results and "answers" in results:
        lines += ["Held-out prompts, how their text goes on, and what the model wrote before and after training:", ""]
        lines += ["```text", *answer_lines(results["answers"]), "```", ""]
    lines += ["```yaml", recipe.strip(), "```", ""] if recipe else []
    lines += [f"![curves]({CURVES})", ""] if results else []
    return "\n".join([*lines, f"ebft {__version__}.", ""])


def write_card(folder: Path, title: str, recipe: Recipe, results: Results, method: str) -> None:
    """Of the final model of a run."""
    model, launch = recipe.model, recipe.training.world_size
    header = [f"library_name: {'peft' if model.adapted else 'transformers'}"]
    for key, names in ("base_model", [model.model]), ("datasets", recipe.data.dataset):
        hub = [n.partition(":")[0] for n in names if n.count("/") == 1 and not Path(n).expanduser().exists()]
        header += [f"{key}: [{', '.join(hub)}]"] if hub else []
    made = f"`{model.model}` fine-tuned with {method} on {', '.join(recipe.data.dataset)}, {results.get('steps')} "
    command = f"ebft {recipe.command} --config recipe.yaml{f' --launch {launch}' if launch > 1 else ''}"
    made += f"steps. Made by `{command}`, all other settings as they are by default:"
    settings = yaml.safe_dump(recipe.given, sort_keys=False, allow_unicode=True)
    (folder / "README.md").write_text(card(title, made, settings, header, results), encoding="utf-8")
