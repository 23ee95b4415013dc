"""Models, tokenizers and feature networks from what a recipe or an evaluation names."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from ebft.config.recipe import Recipe, load_recipe
from ebft.errors import ConfigError
from ebft.loading import Checkpoint, feature_network, load_model, load_tokenizer
from tests.baselines.runs import needs_trl, results_of, run, write_recipe
from tests.tiny_tokenizer import VOCABULARY, byte_tokenizer

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture(scope="module")
def warm(tiny: Path, sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm")
    recipe = write_recipe(folder, tiny, sums, max_steps=8, eval_strategy="no", save_strategy="no")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EBFT_CACHE", str(folder / "cache"))
        assert run("sft", recipe, folder / "sft") == 0
    return folder / "sft"


@needs_trl
@pytest.mark.parametrize("command", ["train", "rlvr"])
def test_a_run_begins_where_sft_ended(warm: Path, tiny: Path, sums: Path, tmp_path: Path, command: str) -> None:
    """`model: runs/sft`, and the frozen network from the warm start or from the base model."""
    recipe = write_recipe(tmp_path, warm, sums, max_steps=1, eval_strategy="no", save_strategy="no")
    own = ["--rewards", "bleu", "--max_new_tokens", "2"] if command == "rlvr" else []
    assert run(command, recipe, tmp_path / "own", *own) == 0
    assert run(command, recipe, tmp_path / "base", *own, "--feature_model", tiny) == 0
    sft_after = results_of(warm)["after"]
    from_warm, from_base = (results_of(tmp_path / name) for name in ("own", "base"))
    for name in ("eval_cross_entropy", "eval_answer_cross_entropy"):
        assert from_warm["before"][name] == pytest.approx(sft_after[name], rel=1e-6)
        assert from_base["before"][name] == from_warm["before"][name]
    # Against the base model it is SFT's own measurement; against the warm start it is another.
    assert from_base["before"]["eval_cfm"] == pytest.approx(sft_after["eval_cfm"], rel=1e-5)
    assert from_base["ruler"] == results_of(warm)["ruler"]
    assert abs(from_warm["before"]["eval_cfm"] - sft_after["eval_cfm"]) > 1e-4
    assert from_warm["ruler"]["network"] != from_base["ruler"]["network"]


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def adapter(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter as peft saves it, without a tokenizer beside it."""
    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), config).save_pretrained(str(folder))
    return folder


class TestCheckpoint:
    def test_an_adapter_on_its_base(self, tiny: Path, adapter: Path) -> None:
        found = Checkpoint.find(str(adapter))
        assert (found.base, found.adapter) == (str(tiny), str(adapter))
        model = found.load(found.load_tokenizer(), torch.float32, CPU)
        assert not model.training
        assert not any(p.requires_grad for p in model.parameters())
        plain = AutoModelForCausalLM.from_pretrained(tiny)
        ids = torch.arange(3, 15)[None]
        with torch.no_grad():
            expected = PeftModel.from_pretrained(plain, str(adapter)).eval()(ids).logits
            torch.testing.assert_close(model(ids).logits, expected)

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({"config.json": "{}"}, r"has no \*\.safetensors"),
            ({"recipe.yaml": "model: x"}, "is a run without a final model yet"),
            ({"final/config.json": "{}"}, r"final is not a checkpoint: it has no .*safetensors"),
            ({"model.safetensors": ""}, r"has no config\.json"),
            ({"adapter_config.json": "{", "adapter_model.bin": ""}, "no base model by its adapter_config.json"),
        ],
    )
    def test_what_is_missing_is_said(self, files: dict[str, str], message: str, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        with pytest.raises(ConfigError, match=message):
            Checkpoint.find(str(folder))

    def test_weights_that_change_and_weights_that_are_damaged(self, tiny: Path, tmp_path: Path) -> None:
        copied = tmp_path / "copy"
        shutil.copytree(tiny, copied)
        before = Checkpoint.find(str(copied)).identity()
        (copied / "README.md").write_text("nothing that matters")
        assert Checkpoint.find(str(copied)).identity() == before
        file = copied / "model.safetensors"
        os.utime(file, ns=(1, 1))
        assert Checkpoint.find(str(copied)).identity() != before
        file.write_text("garbage")
        found = Checkpoint.find(str(copied))
        with pytest.raises(ConfigError, match="copy' cannot be loaded: ") as error:
            found.load(found.load_tokenizer(), torch.float32, CPU)
        assert "\n" not in str(error.value)


class TestRecipe:
    def recipe(self, folder: Path, model: Path, **settings: Any) -> Recipe:
        given = {"model": str(model), "dataset": "d", "output_dir": str(folder / "out"), "use_cpu": True}
        return load_recipe(None, {**given, **settings})

    def test_an_adapter_is_merged_and_trains_as_a_whole(self, tiny: Path, adapter: Path, tmp_path: Path) -> None:
        model = load_model(self.recipe(tmp_path, adapter))
        assert not hasattr(model, "disable_adapter")
        assert all(p.requires_grad for p in model.parameters())
        merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), str(adapter)).merge_and_unload()
        torch.testing.assert_close(model.state_dict(), merged.state_dict(), rtol=0, atol=0)

    def test_a_tokenizer_of_its_own(self, tiny: Path, tmp_path: Path) -> None:
        byte_tokenizer(extra_tokens=2).save_pretrained(tmp_path / "tokenizer")
        assert len(load_tokenizer(self.recipe(tmp_path, tiny))) == VOCABULARY
        other = self.recipe(tmp_path, tiny, tokenizer=str(tmp_path / "tokenizer"))
        assert len(load_tokenizer(other)) == VOCABULARY + 2
        with pytest.raises(ConfigError, match=r"tokenizer .*no such folder"):
            load_tokenizer(self.recipe(tmp_path, tiny, tokenizer=str(tmp_path / "nowhere")))

    def test_feature_networks(self, tiny: Path, adapter: Path, tmp_path: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(tiny)
        adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), str(adapter))
        settings: dict[str, Any] = {"feature_layers": [0.5, 2], "feature_pooling": "mean"}

        def network(like: Any, **changes: Any) -> Any:
            training = self.recipe(tmp_path, tiny, **settings, **changes).training
            return feature_network(like, training, byte_tokenizer())

        assert network(model).source == "copy"
        assert network(adapted).source == "adapter_off"
        assert network(model, feature_source="random").source == "random"
        for changes in ({}, {"feature_model": str(tiny)}):
            found = network(model, **changes)
            assert (found.taps, found.pooling) == ((1, 2), "mean")
        assert {p.dtype for p in network(model, bf16=True).parameters()} == {torch.bfloat16}
        assert {p.dtype for p in network(model, bf16=True, feature_source="average").parameters()} == {torch.float32}
        with pytest.raises(ConfigError, match=r"feature_model .*no such folder"):
            network(model, feature_model=str(tmp_path / "nowhere" / "x"))
