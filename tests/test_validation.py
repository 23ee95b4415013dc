"""All three trainers are measured alike, and count what they spend alike."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl")

from transformers import AutoModelForCausalLM

from ebft.baselines import rlvr, sft
from ebft.config.baseline_settings import RLVRSettings, SFTSettings
from ebft.config.recipe import load_recipe
from ebft.config.training import EBFTConfig
from ebft.train import ruler
from ebft.train.run import load_data, load_model, load_tokenizer
from ebft.train.trainer import EBFTTrainer
from tests.baselines.runs import metrics_of, results_of, run, write_recipe
from tests.models import tiny_model
from tests.tiny_tokenizer import END, byte_tokenizer

pytestmark = pytest.mark.usefixtures("offline")

METRICS = ("cross_entropy", "answer_cross_entropy", "cfm", "whitened_proxy", "reward")


def trainers(tiny: Path, rows: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    file = write_recipe(folder, tiny, rows, **changes)
    made: dict[str, Any] = {}
    for name, settings in (("ebft", EBFTConfig), ("sft", SFTSettings), ("rlvr", RLVRSettings)):
        own = {"rewards": "bleu", "generations": 4, "max_new_tokens": 5} if name == "rlvr" else {}
        recipe = load_recipe(file, {"output_dir": str(folder / name), **own}, settings)
        tokenizer = load_tokenizer(recipe)
        train_set, validation_set = load_data(recipe, tokenizer)
        model = load_model(recipe)
        if name == "ebft":
            made[name] = EBFTTrainer(model, recipe.training, train_set, validation_set, tokenizer)
        else:
            build = {"sft": sft.build, "rlvr": rlvr.build}[name]
            made[name] = build(recipe, train_set, validation_set, model, tokenizer)
    return made


def measured(trainer: Any) -> dict[str, float]:
    found = trainer.evaluate()
    return {k: v for k, v in found.items() if k.startswith("eval_") and k != "eval_runtime"}


@pytest.mark.parametrize(
    "changes",
    [{}, {"document_masks": True}, {"answer_only": True}, {"bf16": True}, {"packing": False, "eval_samples": 4}],
    ids=str,
)
def test_identical_numbers_for_an_identical_model(
    tiny: Path, sums: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    made = trainers(tiny, sums, tmp_path, **changes)
    found = {name: measured(trainer) for name, trainer in made.items()}
    assert {f"eval_{name}{end}" for name in METRICS for end in ("", "_se")} == set(found["ebft"])
    assert found["sft"] == found["ebft"]
    assert found["rlvr"] == found["ebft"]
    rulers = [
        ruler.identity(t.ruler.config if n != "ebft" else t.args, t.features, _validation(t)) for n, t in made.items()
    ]
    assert rulers[0] == rulers[1] == rulers[2]
    # Not the same because nothing is looked at: another model gives other numbers, again the same for all.
    for trainer in made.values():
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(1.1)
    moved = {name: measured(trainer) for name, trainer in made.items()}
    assert moved["ebft"]["eval_cfm"] != found["ebft"]["eval_cfm"]
    assert moved["sft"] == moved["rlvr"] == moved["ebft"]


def _validation(trainer: Any) -> Any:
    return trainer.eval_dataset if isinstance(trainer, EBFTTrainer) else trainer.ruler.dataset


def test_the_same_names_at_the_same_steps(tiny: Path, sums: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny, sums)
    own = ["--rewards", "bleu", "--generations", "4", "--max_new_tokens", "3", "--gradient_accumulation_steps", "1"]
    for command in ("train", "sft", "rlvr"):
        assert run(command, recipe, tmp_path / command, *(own if command == "rlvr" else [])) == 0
    documented = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
    logged = {key for command in ("train", "sft", "rlvr") for entry in metrics_of(tmp_path / command) for key in entry}
    totals = ("step", "total_flos", "train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second")
    logged = {key.replace("/bleu/", "/<name>/") for key in logged} - set(totals)
    assert not sorted(key for key in logged if f"`{key}`" not in documented)
    evaluated = {
        command: [
            (entry["step"], sorted(k for k in entry if k.startswith(("eval_", "spent/"))))
            for entry in metrics_of(tmp_path / command)
            if "eval_cfm" in entry
        ]
        for command in ("train", "sft", "rlvr")
    }
    assert evaluated["train"] == evaluated["sft"] == evaluated["rlvr"]
    assert [step for step, _ in evaluated["train"]] == [0, 2, 4]  # the last one once
    before = [results_of(tmp_path / command)["before"] for command in ("train", "sft", "rlvr")]
    for name in METRICS:
        assert len({r[f"eval_{name}"] for r in before}) == 1
    for command in ("train", "sft", "rlvr"):
        spent = [
            tuple(e[f"spent/{n}"] for n in ("seconds", "tokens", "flops"))
            for e in metrics_of(tmp_path / command)
            if "loss" in e
        ]
        for earlier, later in itertools.pairwise(spent):
            assert all(a < b for a, b in zip(earlier, later, strict=True))
        assert results_of(tmp_path / command)["spent"]["flops"] == spent[-1][2]


def parameters_without_embeddings(model: Any) -> int:
    return sum(p.numel() for n, p in model.named_parameters() if "embed_tokens" not in n)


def test_what_is_counted(tiny: Path, sums: Path, tmp_path: Path) -> None:
    """Tokens and FLOPs of one step, counted again by hand."""
    made = trainers(tiny, sums, tmp_path, max_steps=1, save_strategy="no", eval_strategy="no")
    for trainer in made.values():
        trainer.train()
    model = AutoModelForCausalLM.from_pretrained(tiny)
    n, head = parameters_without_embeddings(model), model.lm_head.weight.numel()
    layers = sum(p.numel() for p in model.model.layers.parameters())
    spent = {name: trainer.spent.totals() for name, trainer in made.items()}

    # EBFT: 4 packed sequences of 48 tokens, 11 anchors with 3 rollouts of 4 tokens; one of two layers is tapped.
    packed = 4 * (48 + 11 * 3 * 4)
    assert spent["ebft"]["spent/generated_tokens"] == 4 * 11 * 3 * 4
    assert spent["ebft"]["spent/tokens"] == 4 * 48
    # Only drawn tokens need logits: when they are drawn, and in the update.
    logits = 4 * 11 * 3 * 4 * 8 * head
    assert spent["ebft"]["spent/flops"] == pytest.approx(packed * (8 * (n - head) + 2 * layers / 2) + logits)

    # SFT: every real token three times 2 per parameter; the first of each of 4 rows is no target.
    tokens = made["sft"].state.log_history[0]["num_tokens"]
    assert spent["sft"]["spent/tokens"] == tokens
    assert spent["sft"]["spent/flops"] == pytest.approx(6 * (n - head) * tokens + 6 * head * (tokens - 4))

    # RLVR: 64 answers, 4 to each of 16 prompts of 4 tokens ("1+2=").
    log = made["rlvr"].state.log_history[0]
    assert spent["rlvr"]["spent/tokens"] == 16 * 4
    assert spent["rlvr"]["spent/generated_tokens"] == pytest.approx(64 * log["completions/mean_length"])
    assert log["num_tokens"] == 64 * 4 + spent["rlvr"]["spent/generated_tokens"]
    drawn = spent["rlvr"]["spent/generated_tokens"]
    assert spent["rlvr"]["spent/flops"] == pytest.approx(8 * (n - head) * log["num_tokens"] + 8 * head * drawn)


@pytest.mark.parametrize("vocabulary", [260, 3000])
@pytest.mark.parametrize("gamma", [0.0, 0.1])
def test_flops_are_what_torch_counts(sums: Path, tmp_path: Path, vocabulary: int, gamma: float) -> None:
    """Every matrix product of a whole run, as torch counts them; ours leave out attention's and SFT's padding."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    tiny_model("qwen2", vocab_size=vocabulary, hidden_size=64, intermediate_size=256).save_pretrained(tmp_path / "m")
    byte_tokenizer(pad=END).save_pretrained(tmp_path / "m")
    changes = {"save_strategy": "no", "eval_strategy": "no", "gradient_accumulation_steps": 2, "samples_every": 0}
    made = trainers(tmp_path / "m", sums, tmp_path, max_steps=2, gamma=gamma, **changes)
    for name, trainer in made.items():
        sizes: list[int] = []
        if name == "sft":
            step = trainer.training_step

            def seen(model: Any, inputs: Any, *rest: Any, step: Any = step, sizes: Any = sizes) -> Any:
                sizes.append(inputs["input_ids"].numel())
                return step(model, inputs, *rest)

            trainer.training_step = seen
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
            trainer.train()
        spent = trainer.spent.totals()
        padding = (sum(sizes) - spent["spent/tokens"]) * trainer.passes.body * 3 if sizes else 0.0
        ratio = (spent["spent/flops"] + padding) / counted.get_total_flops()
        assert 0.85 < ratio < 1.15, (name, ratio)  # the last token of a rollout is drawn, and read by nobody


def test_flops_leave_out_looked_up_embeddings_and_frozen_gradients() -> None:
    tied = tiny_model("qwen2")
    total = sum(p.numel() for p in tied.parameters())
    assert ruler.Passes(tied).over(1, 1) == 2 * total  # the head multiplies with the shared matrix
    assert ruler.Passes(tied).update == 3
    untied = tiny_model("llama")
    assert ruler.Passes(untied).over(1, 1) == 2 * parameters_without_embeddings(untied)
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(untied, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert ruler.Passes(adapted).update == 2


def test_seconds_leave_out_evaluation_and_saving(tmp_path: Path) -> None:
    spent = ruler.Spent()

    class State:
        global_step = 0
        is_world_process_zero = True

    class Control:
        should_evaluate = should_save = should_log = False

    args = type("Args", (), {"output_dir": str(tmp_path)})
    spent.on_train_begin(args, State, Control)
    time.sleep(0.05)
    spent.on_step_end(args, State, Control)
    time.sleep(0.2)
    spent.on_evaluate(args, State, Control)
    time.sleep(0.05)
    spent.on_step_end(args, State, Control)
    assert 0.1 <= spent.totals()["spent/seconds"] < 0.2


@pytest.fixture(scope="module")
def warm(tiny: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm")
    recipe = write_recipe(folder, tiny, sums, max_steps=8, eval_strategy="no", save_strategy="no")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBFT_CACHE", str(folder / "cache"))
        assert run("sft", recipe, folder / "sft") == 0
    return folder / "sft"


class TestWarmStart:
    """`model: runs/sft`, and the frozen network from the warm start or from the base model."""

    @pytest.mark.parametrize("command", ["train", "rlvr"])
    def test_a_run_begins_where_sft_ended(
        self, warm: Path, tiny: Path, sums: Path, tmp_path: Path, command: str
    ) -> None:
        recipe = write_recipe(tmp_path, warm, sums, max_steps=1, eval_strategy="no", save_strategy="no")
        own = ["--rewards", "bleu", "--max_new_tokens", "2"] if command == "rlvr" else []
        assert run(command, recipe, tmp_path / "own", *own) == 0
        assert run(command, recipe, tmp_path / "base", *own, "--feature_model", tiny) == 0
        sft_after = results_of(warm)["after"]
        from_warm, from_base = (results_of(tmp_path / name) for name in ("own", "base"))
        for name in ("eval_cross_entropy", "eval_answer_cross_entropy"):
            assert from_warm["before"][name] == pytest.approx(sft_after[name], rel=1e-6)
            assert from_base["before"][name] == from_warm["before"][name]
        # Against the base model it is SFT's own ruler; against the warm start it is another.
        assert from_base["before"]["eval_cfm"] == pytest.approx(sft_after["eval_cfm"], rel=1e-5)
        assert from_base["ruler"] == results_of(warm)["ruler"]
        assert abs(from_warm["before"]["eval_cfm"] - sft_after["eval_cfm"]) > 1e-4
        assert from_warm["ruler"]["network"] != from_base["ruler"]["network"]

    def test_a_run_that_is_not_finished(self, warm: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
        unfinished = tmp_path / "unfinished"
        unfinished.mkdir()
        (unfinished / "recipe.yaml").write_text("model: x\n")
        assert run("train", write_recipe(tmp_path, unfinished, sums), tmp_path / "out") == 2
        assert "is a run without a final model yet" in capsys.readouterr().err
