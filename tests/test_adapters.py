"""Adapters of every kind that the README names: they train, the base model stays, and a merged export is the same
model."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from ebft import cli, loading
from ebft.config.recipe import load_recipe
from ebft.method.layout import StridedLayout
from ebft.model.backbone import adapter_parameters, packed_hidden_states
from ebft.model.features import FeatureNetwork, weight_fingerprint
from tests.baselines.runs import make_model, run, write_recipe
from tests.tiny_tokenizer import END

KINDS: dict[str, dict[str, Any]] = {
    "lora": {"r": 4, "target_modules": "all-linear"},
    "dora": {"r": 4, "target_modules": ["q_proj", "up_proj"], "use_dora": True},
    "rslora with the head": {"r": 4, "target_modules": ["v_proj"], "use_rslora": True, "modules_to_save": ["lm_head"]},
    "adalora": {"peft_type": "ADALORA", "target_modules": ["q_proj", "v_proj"], "total_step": 100},
    "ia3": {"peft_type": "IA3", "target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "loha": {"peft_type": "LOHA", "r": 4, "target_modules": ["q_proj", "v_proj"]},
    "lokr": {"peft_type": "LOKR", "r": 4, "target_modules": ["q_proj", "v_proj"]},
    "oft": {"peft_type": "OFT", "r": 0, "oft_block_size": 4, "target_modules": ["q_proj", "v_proj"]},
    "hra": {"peft_type": "HRA", "r": 4, "target_modules": ["q_proj", "v_proj"]},
    "vera": {"peft_type": "VERA", "r": 4, "target_modules": ["q_proj", "o_proj"]},
    "ln_tuning": {"peft_type": "LN_TUNING", "target_modules": ["input_layernorm", "norm"]},
}
QUICK = {"max_steps": 2, "eval_strategy": "no", "samples_every": 0, "learning_rate": 1e-2, "validation_split": 0}

pytestmark = pytest.mark.usefixtures("offline")


def logits_of(place: Any, adapter: Path | None = None) -> torch.Tensor:
    """Of a model or its folder, and what peft itself, without ebft, says of an adapter on it."""
    model: Any = AutoModelForCausalLM.from_pretrained(place) if isinstance(place, Path) else place
    model = model if adapter is None else PeftModel.from_pretrained(model, str(adapter))
    with torch.no_grad():
        return model.eval().float()(torch.arange(3, 19)[None] * 7 % 250).logits


@pytest.mark.parametrize("kind", ["rslora with the head", "ln_tuning"])
def test_any_adapter_trains_and_its_export_is_the_same_model(kind: str, tiny: Path, sums: Path, tmp_path: Path) -> None:
    """Also where it was stopped and resumed."""
    recipe = write_recipe(tmp_path, tiny, sums, **QUICK, peft=KINDS[kind])
    assert run("train", recipe, tmp_path / "out") == 0
    adapted = logits_of(tiny, tmp_path / "out" / "final")
    if kind != "ln_tuning":
        assert run("train", recipe, tmp_path / "stopped", "--save_steps", 1) == 0
        shutil.rmtree(tmp_path / "stopped" / "checkpoint-2")
        assert run("train", recipe, tmp_path / "stopped", "--resume") == 0
        assert torch.equal(logits_of(tiny, tmp_path / "stopped" / "final"), adapted)
    assert not torch.equal(adapted, logits_of(tiny))

    assert cli.main(["export", str(tmp_path / "out"), "--output", str(tmp_path / "merged")]) == 0
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    torch.testing.assert_close(logits_of(tmp_path / "merged"), adapted, rtol=1e-4, atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").eos_token == END


@pytest.mark.parametrize("kind", KINDS)
def test_the_frozen_network_is_the_base_model(kind: str, tiny: Path, sums: Path, tmp_path: Path) -> None:
    """Whatever the adapter has learnt: same features, and the same mark as the base model's own features. Elsewhere the
    adapter is on, and trains on."""
    given = load_recipe(write_recipe(tmp_path, tiny, sums, peft=KINDS[kind]), {"output_dir": str(tmp_path / "out")})
    base = FeatureNetwork(AutoModelForCausalLM.from_pretrained(tiny))
    adapted = loading.add_adapter(AutoModelForCausalLM.from_pretrained(tiny), loading.peft_config(given))
    own = adapter_parameters(adapted)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    assert trained
    assert {id(p) for p in trained} <= own
    with torch.no_grad():
        for parameter in trained:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    features, copied = FeatureNetwork(adapted, source="adapter_off"), FeatureNetwork(adapted, source="copy")
    assert list(features.parameters()) == []
    adapted.train()
    layout = StridedLayout(24, 4, 4, 3)
    ids = torch.randint(250, (2, layout.packed_length), generator=torch.Generator().manual_seed(0))
    for mine, expected, learnt in zip(*(network(ids, layout) for network in (features, base, copied)), strict=True):
        torch.testing.assert_close(mine, expected)
        assert (learnt - expected).abs().max() > 1e-3
    assert adapted.training
    packed_hidden_states(adapted, ids, layout).sum().backward()
    assert all(p.grad is not None for n, p in adapted.named_parameters() if p.requires_grad and "lm_head" not in n)
    if kind != "ln_tuning":  # whose frozen parameters stand in another order
        assert weight_fingerprint(features.decoder) == weight_fingerprint(base.decoder)


def test_a_saved_adapter_config_can_be_given_as_peft(tiny: Path, sums: Path, tmp_path: Path) -> None:
    config = LoraConfig(r=3, lora_alpha=7, target_modules=["q_proj"], use_rslora=True, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), config).save_pretrained(str(tmp_path / "other"))
    recipe = write_recipe(tmp_path, tiny, sums)
    for place in ("other", "other/adapter_config.json"):
        given = load_recipe(recipe, {"output_dir": str(tmp_path / "out"), "peft": str(tmp_path / place)})
        found = loading.peft_config(given)
        assert (found.r, found.lora_alpha, found.target_modules, found.use_rslora) == (3, 7, {"q_proj"}, True)
        assert (found.inference_mode, found.base_model_name_or_path) == (False, None)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"peft": {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 4}}, "packed sequences have no place for"),
        ({"peft": {"target_modules": ["query"]}}, "the adapter does not fit the model: Target modules"),
        ({"lora": True, "load_in_4bit": True}, "load_in_4bit=true is for ebft train; it needs a GPU"),
    ],
)
def test_what_is_wrong_with_an_adapter_is_said(
    settings: Any, words: str, tiny: Path, sums: Path, tmp_path: Path, capsys: Any
) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, **settings)
    assert run("train", recipe, tmp_path / "out") == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("bf16", [False, True])
def test_four_bits(bf16: bool, sums: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """QLoRA: the base model stays in 4 bits, and the export is the 4-bit model with its adapter.

    On a CPU, with those of bitsandbytes' kernels that have a backward pass.
    """
    bitsandbytes = pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(loading, "check_four_bit", lambda *_: None)
    monkeypatch.setattr(bitsandbytes.nn.modules, "has_avx512bf16", lambda: False)
    base = make_model(tmp_path / "base", intermediate_size=128)  # on a CPU, bitsandbytes wants multiples of 64
    settings = {**QUICK, "validation_split": 0.2, "lora": True, "load_in_4bit": True, "bf16": bf16}
    assert run("train", write_recipe(tmp_path, base, sums, **settings), tmp_path / "out") == 0

    kept: Any = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.bfloat16 if bf16 else torch.float32, **loading.four_bit(torch.device("cpu"))
    )
    assert "Params4bit" in {type(p).__name__ for p in kept.model.layers.parameters()}
    rounded = kept.dequantize(torch.float32)
    for name in ("final", "checkpoint-2"):
        assert cli.main(["export", str(tmp_path / "out" / name), "--output", str(tmp_path / name)]) == 0
    expected = logits_of(rounded, tmp_path / "out" / "final")
    for name in ("final", "checkpoint-2"):
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert not hasattr(merged.config, "quantization_config")
        torch.testing.assert_close(logits_of(merged), expected, rtol=1e-4, atol=1e-4)
        assert (logits_of(merged) - logits_of(base)).abs().max() > 0.1


def test_the_base_model_is_never_in_float32_with_bf16(tiny: Path, sums: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny, sums, lora=True, bf16=True)
    given = load_recipe(recipe, {"output_dir": str(tmp_path / "out")})
    assert {p.dtype for p in loading.load_model(given).parameters()} == {torch.bfloat16}
    adapted = loading.add_adapter(loading.load_model(given), loading.peft_config(given))
    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.float32}
