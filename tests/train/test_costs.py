"""What runs cost: tokens, FLOPs and seconds, counted alike for all three trainers."""

from pathlib import Path
from types import SimpleNamespace

import peft
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

pytest.importorskip("trl")

from ebft import EBFTTrainer
from ebft.train import measured
from ebft.train.networks import FlopCounter
from tests.baselines.runs import make_trainers
from tests.models import MIXTURES, tiny_model
from tests.train.small_runs import config, counting_text, small_model

pytestmark = pytest.mark.usefixtures("offline")


def test_what_is_counted(tiny: Path, sums: Path, tmp_path: Path) -> None:
    """Tokens and FLOPs of one step, counted again by hand."""
    made = make_trainers(tiny, sums, tmp_path, max_steps=1, save_strategy="no", eval_strategy="no", trees=False)
    for trainer in made.values():
        trainer.train()
    model = AutoModelForCausalLM.from_pretrained(tiny)
    head = model.lm_head.weight.numel()
    n = sum(p.numel() for name, p in model.named_parameters() if "embed_tokens" not in name)
    layers = sum(p.numel() for p in model.model.layers.parameters())
    spent = {name: trainer.spent for name, trainer in made.items()}

    # EBFT: 4 packed sequences of 48 tokens, 11 anchors with 3 rollouts of 4 tokens; one of two layers is tapped.
    packed = 4 * (48 + 11 * 3 * 4)
    assert spent["ebft"]["generated_tokens"] == 4 * 11 * 3 * 4
    assert spent["ebft"]["tokens"] == 4 * 48
    # Only drawn tokens need logits: when they are drawn, and in the update, where first tokens share them.
    logits = 4 * 11 * (3 * 4 * 2 + (1 + 3 * 3) * 6) * head
    assert spent["ebft"]["flops"] == pytest.approx(packed * (8 * (n - head) + 2 * layers / 2) + logits)

    # SFT: every real token three times 2 per parameter; the first of each of 4 rows is no target.
    tokens = made["sft"].state.log_history[0]["num_tokens"]
    assert spent["sft"]["tokens"] == tokens
    assert spent["sft"]["flops"] == pytest.approx(6 * (n - head) * tokens + 6 * head * (tokens - 4))

    # RLVR: 64 answers, 4 to each of 16 prompts of 4 tokens ("1+2=").
    log, counted = made["rlvr"].state.log_history[0], spent["rlvr"]
    assert counted["tokens"] == 16 * 4
    drawn = counted["generated_tokens"]
    assert drawn == pytest.approx(64 * log["completions/mean_length"])
    assert log["num_tokens"] == 64 * 4 + drawn
    assert counted["flops"] == pytest.approx(8 * (n - head) * log["num_tokens"] + 8 * head * drawn)


@pytest.mark.parametrize("family", ["llama", "qwen2", *MIXTURES])
def test_flops_of_a_family_are_what_torch_counts(family: str) -> None:
    """Products with weights in one pass, of the experts that the tokens go to. Ours count norms and biases as well."""
    model = tiny_model(family)
    model.set_experts_implementation("eager")  # torch does not count the products of stacked experts
    with FlopCounterMode(display=False) as counted:
        model(input_ids=torch.arange(48).view(2, 24))
    products = counted.get_flop_counts()["Global"]
    with_weights = sum(products.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    assert FlopCounter(model).over(48, 48) == pytest.approx(with_weights, rel=0.03)
    assert FlopCounter(model).update == 3
    if family == "llama":  # gradients of frozen weights cost nothing
        lora = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
        assert FlopCounter(peft.get_peft_model(model, lora)).update == 2


def test_seconds_leave_out_evaluation_and_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = EBFTTrainer(small_model(), config(tmp_path), counting_text())
    trainer.state.max_steps = 3
    ticks = iter((10.0, 11.0, 50.0, 51.5))  # from 11 to 50 it evaluates
    monkeypatch.setattr(measured, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    for _ in range(2):
        trainer.get_batch_samples(iter([]), 1, trainer.args.device)
        trainer.on_step_end()
    assert trainer.spent["seconds"] == 2.5
