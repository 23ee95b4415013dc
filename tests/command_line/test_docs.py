"""The documentation says what the code does: settings, metrics, recipes and links."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.settings_page import settings_page

from ebft import cli
from ebft.config import evaluation as eval_options
from ebft.config.method import settings_that_change
from ebft.config.recipe import RECIPES as SHIPPED
from ebft.config.recipe import find_recipe, load_recipe, read_values, training_parser
from ebft.config.settings import Parser
from ebft.config.training import EBFTConfig
from ebft.studies import commands, compare
from ebft.studies.jobs import Plan
from ebft.studies.study_file import Study, read_study, read_sweep

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STUDIES = sorted(f for f in (SHIPPED / "studies").rglob("*.yaml") if f.name != "recipe.yaml")
RECIPES = sorted({*SHIPPED.rglob("*.yaml")} - {*STUDIES})


def test_settings_page_is_what_the_dataclasses_say() -> None:
    committed = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert committed == settings_page(), "run `python -m tools.settings_page > docs/settings.md`"


def command_of(file: Path) -> str:
    first = file.stem.split("_")[0]
    return first if first in ("sft", "rlvr") else "train"


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: str(file.relative_to(SHIPPED)))
def test_recipes_load(file: Path, tmp_path: Path) -> None:
    overrides: dict[str, Any] = {"output_dir": str(tmp_path)}
    if file.stem.startswith("qwen-"):
        overrides["dataset"] = "my.jsonl"  # the only thing to give
    if not torch.cuda.is_available():
        overrides["use_cpu"] = True  # transformers refuses bf16 without a GPU otherwise
    recipe = load_recipe(file, overrides, command_of(file))
    assert recipe.model.model
    assert recipe.training.output_dir == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "horizon", "stride"), [("qa_code", 8, 8), ("unstructured_code", 8, 8), ("translation", 4, 2)]
)
def test_paper_recipes_hold_the_papers_settings(name: str, horizon: int, stride: int, tmp_path: Path) -> None:
    file = SHIPPED / "paper" / f"{name}.yaml"
    config: EBFTConfig = load_recipe(file, {"output_dir": str(tmp_path), "use_cpu": True}).training
    assert (config.context_length, config.horizon, config.stride, config.samples) == (1024, horizon, stride, 4)
    assert config.per_device_train_batch_size * config.gradient_accumulation_steps == 16
    assert (config.learning_rate, config.temperature, config.num_train_epochs) == (1e-6, 0.6, 2)
    assert (config.adam_beta1, config.adam_beta2, config.weight_decay, config.max_grad_norm) == (0.9, 0.95, 0.0, 1.0)
    assert config.whitening == "reference"
    assert config.bf16


BASELINES = [file for file in RECIPES if command_of(file) != "train"]


@pytest.mark.parametrize("file", BASELINES, ids=lambda file: file.stem)
def test_baselines_are_measured_as_ebft_is(file: Path, tmp_path: Path) -> None:
    """The same validation text and the same measurement as the EBFT recipe of the same task."""
    task = next(t for t in ("qa_code", "unstructured_code", "translation") if t in file.stem)
    overrides = {"output_dir": str(tmp_path), "use_cpu": True}
    mine, ebft = load_recipe(file, overrides, command_of(file)), load_recipe(file.with_name(f"{task}.yaml"), overrides)
    for name in (
        *settings_that_change("text", "features", "proxy"),
        "bf16",
        "eval_steps",
        "eval_strategy",
        "seed",
    ):
        assert getattr(mine.training, name) == getattr(ebft.training, name), name
    assert mine.data == ebft.data
    assert mine.model.model == ebft.model.model


@pytest.mark.parametrize("task", ["qa_code", "unstructured_code", "translation"])
@pytest.mark.parametrize(
    ("kind", "rate", "schedule", "epochs"),
    [
        ("constant", 5e-6, "constant_with_warmup", 5),
        ("cosine", 1e-5, "cosine_with_min_lr", 5),
        ("warm_start", 1e-5, "cosine_with_min_lr", 1),
    ],
)
def test_sft_recipes_hold_the_papers_settings(
    task: str, kind: str, rate: float, schedule: str, epochs: int, tmp_path: Path
) -> None:
    file = SHIPPED / "paper" / f"sft_{task}_{kind}.yaml"
    config: Any = load_recipe(file, {"output_dir": str(tmp_path), "use_cpu": True}, "sft").training
    assert config.per_device_train_batch_size * config.gradient_accumulation_steps == 64
    assert (config.max_length, config.learning_rate, config.num_train_epochs) == (2048, rate, epochs)
    assert (config.lr_scheduler_type.value, config.warmup_steps) == (schedule, 0.03)
    assert (config.adam_beta1, config.adam_beta2) == (0.9, 0.95)
    if schedule == "cosine_with_min_lr":
        assert config.lr_scheduler_kwargs == {"min_lr_rate": 0.1}


@pytest.mark.parametrize(("task", "prompts", "rewards"), [("qa_code", 32, "unit_tests"), ("translation", 128, "bleu")])
def test_rlvr_recipes_hold_the_papers_settings(task: str, prompts: int, rewards: str, tmp_path: Path) -> None:
    file = SHIPPED / "paper" / f"rlvr_{task}.yaml"
    config: Any = load_recipe(file, {"output_dir": str(tmp_path), "use_cpu": True}, "rlvr").training
    assert config.per_device_train_batch_size * config.gradient_accumulation_steps == prompts * 8
    assert (config.generations, config.generation_temperature, config.max_new_tokens) == (8, 1.0, 1024)
    assert (config.kl_coefficient, config.learning_rate, config.rewards) == (0.0, 1e-6, [rewards])


def commands_of(page: Path) -> list[list[str]]:
    """What a page tells to type, without the word `ebft`."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("ebft ")]


PAPER_COMMANDS = commands_of(ROOT / "docs" / "reproduce.md")


@pytest.mark.parametrize("command", PAPER_COMMANDS, ids=" ".join)
def test_the_papers_commands_are_taken(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and values of every setting, as the command itself checks them; nothing is loaded or run."""
    monkeypatch.chdir(ROOT)
    name, *arguments = command
    if name in cli.TRAINING:
        chosen = training_parser(name).parse_args(arguments)
        load_recipe(chosen.config, {**chosen.settings, "use_cpu": True}, name)
    elif name == "sweep":
        chosen = commands.sweep_parser().parse_args(arguments)
        overrides = {**chosen.settings, "use_cpu": True}
        assert len(read_sweep(chosen.config, overrides, chosen.set, chosen.command).rows) > 1
    elif name == "eval":
        parser = Parser("eval", "")
        parser.add_settings("", [(name, f) for name, f, _ in eval_options.options()])
        eval_options.EvalOptions.from_values(parser.parse_args(arguments).settings)
    elif name == "study":
        kind, place, *rest = arguments
        assert set(rest) <= {"run": {"--dry-run"}, "report": {"--paper"}}[kind]
        assert kind == "report" or find_recipe(place) in STUDIES
    else:
        assert name == "compare"
        parser = argparse.ArgumentParser()
        compare.add_arguments(parser)
        parser.parse_args(arguments)


def test_the_papers_commands_follow_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a command starts from or looks at is one that another command of the page makes."""
    monkeypatch.chdir(ROOT)
    runs, sweeps, used = set(), set(), set()
    for name, *arguments in PAPER_COMMANDS:
        if name in cli.TRAINING:
            chosen = training_parser(name).parse_args(arguments)
            runs.add({**read_values(chosen.config), **chosen.settings}["output_dir"])
        elif name == "sweep":
            sweeps.add(arguments[arguments.index("--output_dir") + 1])
        elif name == "study" and arguments[0] == "run":
            runs.add(str(read_study(arguments[1]).folder))
        used |= {word.removesuffix("/final") for word in arguments if word.startswith("runs/")}
    assert "runs/paper-qa-code" in runs
    assert not runs & sweeps, "a sweep's folder holds runs, it is none"
    assert used - sweeps <= runs


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_studies_are_valid(file: Path) -> None:
    """Every run and every option of its evaluation; of the paper's, as many as the page says."""
    study = read_study(file)
    plan = Plan(study)
    assert "calibration" in study.evaluation["tasks"]
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    if file.parent.name == "paper":
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{file.name}`" in line]
        runs, evaluations = (int(cell) for cell in row.split("|")[3:5])
        assert len(plan.jobs) + plan.unknown == runs + evaluations
        assert f"study run studies/paper/{file.stem}" in page


@pytest.mark.parametrize("task", ["qa_code", "unstructured_code", "translation"])
def test_main_studies_search_what_the_paper_did(task: str) -> None:
    study = read_study(f"studies/paper/{task}")

    def grid(method: str, of: Study = study) -> list[dict[str, Any]]:
        return [row.values for row in of.rows if row.method == method]

    for row in study.rows:
        if row.command == "train":
            assert row.candidates == [{}]
        elif row.method in ("sft", "sft-constant"):
            assert row.candidates == [{"gradient_accumulation_steps": n} for n in (16, 32)]  # of 4 documents
    gammas = [{"gamma": gamma} for gamma in (0.0, 0.03, 0.1)]
    assert grid("ebft") == grid("ebft-ws") == gammas
    assert grid("sft") == grid("sft-constant") == [{"num_train_epochs": epochs} for epochs in (2, 5)]
    if task != "unstructured_code":
        first, second = (values["gradient_accumulation_steps"] for values in grid("rlvr"))
        assert second == 2 * first
    told = eval_options.EvalOptions.from_values(study.evaluation)
    assert (told.samples, told.temperature, told.top_p, told.max_new_tokens) == (16, 0.6, 0.95, 512)
    suffix = "" if task == "qa_code" else f"_{task}"
    for method in ("ebft", "ebft-ws"):
        found = grid(method, read_study(f"studies/paper/alpha_gamma{suffix}"))
        assert found == [{"alpha": alpha, **gamma} for alpha in (0.0, 0.5, 1.0) for gamma in gammas]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue  # the web
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}, which is not there"
        if heading and file.suffix == ".md":
            assert heading in anchors_of(file), f"{page.name} links to {target}, a heading that is not there"


def anchors_of(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
