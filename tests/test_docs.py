"""The documentation says what the code does: settings, metrics, recipes and links."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ebft.config import EBFTConfig
from ebft.docs import settings_page
from ebft.recipe import load_recipe
from ebft.train import evaluation, iteration, trainer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))


def test_settings_page_is_what_the_dataclasses_say() -> None:
    committed = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert committed == settings_page(), "run `python -m ebft.docs > docs/settings.md`"


def logged_names() -> set[str]:
    """Names of metrics, read from the source that logs them."""
    steps, training = inspect.getsource(iteration), inspect.getsource(trainer)
    names = set(re.findall(r'"([\w/]+)":', inspect.getsource(iteration._metrics)))
    names |= set(re.findall(r'metrics\["([\w/]+)"\]', steps))
    names |= set(re.findall(r'logs\["([\w/]+)"\]', training)) | set(re.findall(r'_add\("([\w/]+)"', training))
    names |= {f"ebft/seconds_{name}" for name in re.findall(r'clock\.phase\("(\w+)"', steps + training)}
    evaluated = inspect.getsource(evaluation.measure) + inspect.getsource(evaluation.summarize)
    validation = set(re.findall(r'"(\w+)":', evaluated)) | set(re.findall(r'estimates\["(\w+)"\]', evaluated))
    names |= {f"eval_{name}{ending}" for name in validation for ending in ("", "_se")}
    return names | {"eval_runtime", "loss", "grad_norm", "learning_rate", "epoch"}


def test_every_metric_is_explained() -> None:
    names = logged_names()
    known = {"reward", "ebft/cfm", "ebft/policy_loss", "kl", "step_time", "ebft/seconds_update", "eval_cfm_se"}
    assert known <= names, "the source is not read as it should be"
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    missing = sorted(name for name in names if f"`{name}`" not in page)
    assert not missing, f"not explained in docs/metrics.md: {missing}"


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: str(file.relative_to(ROOT / "recipes")))
def test_recipes_load(file: Path, tmp_path: Path) -> None:
    overrides: dict[str, Any] = {"output_dir": str(tmp_path)}
    if not torch.cuda.is_available():
        overrides["use_cpu"] = True  # transformers refuses bf16 without a GPU otherwise
    recipe = load_recipe(file, overrides)
    assert recipe.model.model
    assert recipe.training.output_dir == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "horizon", "stride"), [("qa_code", 8, 8), ("unstructured_code", 8, 8), ("translation", 4, 2)]
)
def test_paper_recipes_hold_the_papers_settings(name: str, horizon: int, stride: int, tmp_path: Path) -> None:
    file = ROOT / "recipes" / "paper" / f"{name}.yaml"
    config: EBFTConfig = load_recipe(file, {"output_dir": str(tmp_path), "use_cpu": True}).training
    assert (config.context_length, config.horizon, config.stride, config.samples) == (1024, horizon, stride, 4)
    assert config.per_device_train_batch_size * config.gradient_accumulation_steps == 16
    assert (config.learning_rate, config.temperature, config.num_train_epochs) == (1e-6, 0.6, 2)
    assert (config.adam_beta1, config.adam_beta2, config.weight_decay, config.max_grad_norm) == (0.9, 0.95, 0.0, 1.0)
    assert config.whitening == "reference"
    assert config.bf16


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
