"""`ebft sft`; and what both baselines share: TRL's arguments, EBFT's measurement, divergence."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

pytest.importorskip("trl")
from trl import SFTConfig

from ebft.baselines import sft, trl_trainers
from ebft.config.recipe import load_recipe
from ebft.data.packing import DocumentIndex, SequenceDataset, TokenStore
from ebft.data.row_format import encode
from ebft.errors import ConfigError, DataError, TrainingDiverged
from ebft.train import sequences as loading
from ebft.train.sequences import Loaded
from tests.baselines.runs import metrics_of, results_of, run, write_recipe, write_rows
from tests.tiny_tokenizer import END, byte_tokenizer

pytestmark = pytest.mark.usefixtures("offline")


def sequences(rows: list[dict[str, Any]], length: int = 200, packing: bool = False) -> SequenceDataset:
    tokenizer = byte_tokenizer()
    store = TokenStore.from_documents([encode(row, tokenizer) for row in rows])
    return SequenceDataset(DocumentIndex.of(store), length, packing, tokenizer.eos_token_id)


def made(folder: Path, model: Path, data: Path, **changes: Any) -> tuple[Loaded, Any]:
    """What `ebft sft` loads, and its trainer."""
    file = write_recipe(folder, model, data, **changes)
    loaded = loading.load(load_recipe(file, {"output_dir": str(folder / "out")}, "sft"))
    return loaded, sft.MeasuredSFT.prepare(loaded)[1]()


def loss_of_documents_alone(model: Any, batch: dict[str, torch.Tensor]) -> float:
    """The mean over all targets, each document in a sequence of its own; they begin where positions do."""
    losses = []
    for ids, labels, positions in zip(batch["input_ids"], batch["labels"], batch["position_ids"], strict=True):
        begins = torch.nonzero(positions == 0)[:, 0].tolist()
        for begin, end in pairwise([*begins, len(ids)]):
            logits = model(ids[None, begin:end]).logits[0, :-1]
            losses.append(F.cross_entropy(logits, labels[begin + 1 : end], ignore_index=sft.IGNORED, reduction="none"))
    targets = (batch["labels"] != sft.IGNORED).sum()
    return float(torch.cat(losses).sum() / targets)


TURNS = (("user", "hi"), ("assistant", "hello"), ("user", "bye"), ("assistant", "so long"))
FORMATS = (
    {"prompt": "What is 1+1? ", "completion": "It is 2."},
    {"text": "All of this counts."},
    {"messages": [{"role": role, "content": content} for role, content in TURNS]},
)


def test_answers_beyond_reach_are_an_error() -> None:
    with pytest.raises(DataError, match="no answer lies within the first max_length tokens"):
        sft.token_rows(sequences([FORMATS[0]], length=4), answer_only=True)


class TestMasks:
    @pytest.mark.parametrize(("length", "packing"), [(7, False), (16, True), (64, False)])
    def test_labels_are_the_tokens_that_ebft_flags(self, length: int, packing: bool) -> None:
        dataset = sequences([*FORMATS] * 3, length, packing)
        expected = []
        for row in (dataset[place] for place in range(len(dataset))):
            real = row["document_ids"] >= 0
            tokens, flags = row["input_ids"][real], row["answer_mask"][real]
            if flags[1:].any():
                expected.append((tokens.tolist(), tokens.masked_fill(~flags, sft.IGNORED).tolist()))
        found = sft.token_rows(dataset, answer_only=True)
        assert [(list(row["input_ids"]), list(row["labels"])) for row in found] == expected != []

    @pytest.mark.parametrize("answer_only", [True, False])
    def test_what_the_model_is_given(self, tiny: Path, sums: Path, tmp_path: Path, answer_only: bool) -> None:
        """After everything TRL does to them: the labels in the batches of the trainer itself."""
        loaded, trainer = made(tmp_path, tiny, sums, answer_only=True, loss_on_answers=answer_only)
        documents = 0
        for batch in trainer.get_train_dataloader():
            for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
                documents += 1
                assert (labels[mask == 0] == sft.IGNORED).all()
                text, answer = (loaded.tokenizer.decode(t) for t in (ids[mask == 1], labels[labels != sft.IGNORED]))
                assert text.endswith(", and that is all" + END)
                assert answer == (text.split("=")[1] if answer_only else text)
        assert documents == len(loaded.train_set.index)

    def test_packed_documents_apart_are_documents_alone(self, tiny: Path, sums: Path, tmp_path: Path) -> None:
        """The loss of every batch against plain sequences of one document each; without masks it is another."""
        first: dict[bool, float] = {}
        for masks in (True, False):
            settings = {"pack_training": True, "max_length": 50, "document_masks": masks, "answer_only": True}
            loaded, trainer = made(tmp_path, tiny, sums, **settings)
            for batch in trainer.get_train_dataloader():
                with torch.no_grad():
                    loss = trainer.compute_loss(loaded.model, dict(batch)).item()
                    first.setdefault(masks, loss)
                    if masks:
                        assert loss == pytest.approx(loss_of_documents_alone(loaded.model, batch), rel=1e-5)
        assert first[True] != pytest.approx(first[False], rel=1e-4)


def test_a_run_and_a_resumed_one(tiny: Path, sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Held-out answers become likelier, a run leaves what `ebft train` leaves, one that was stopped ends the same."""
    recipe = write_recipe(tmp_path, tiny, sums, answer_only=True, max_steps=30, eval_steps=15, save_steps=15, gamma=0.1)
    output, stopped = tmp_path / "out", tmp_path / "stopped"
    assert run("sft", recipe, output) == 0
    printed = capsys.readouterr()
    assert "cross-entropy, answer tokens" in printed.out
    assert "note: gamma: used by EBFT training only" in printed.err
    results = results_of(output)
    assert results["method"] == "sft"
    assert results["after"]["eval_answer_cross_entropy"] < results["before"]["eval_answer_cross_entropy"] - 1
    assert (results["steps"], results["spent"]["generated_tokens"]) == (30, 0)
    assert {e["step"] for e in metrics_of(output) if "eval_cfm" in e} == {0, 15, 30}
    assert "| sample 1 |" in (output / "samples" / "step-000002.md").read_text()
    assert "supervised fine-tuning" in (output / "final" / "README.md").read_text()
    shutil.copytree(output, stopped)
    shutil.rmtree(stopped / "final")
    (stopped / "checkpoint-30" / "COMPLETE").unlink()  # cut off
    assert run("sft", recipe, stopped, "--resume") == 0
    weights = "final/model.safetensors"
    assert (output / weights).read_bytes() == (stopped / weights).read_bytes()
    assert results_of(stopped)["change"] == results["change"]
    for name in ("spent/tokens", "spent/flops", "loss", "eval_cfm", "eval_cross_entropy"):
        one, other = ([(e["step"], e[name]) for e in metrics_of(p) if name in e] for p in (output, stopped))
        assert one == other, name


def test_every_option_trains(tiny: Path, sums: Path, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "gradient_checkpointing": True, "trl_options": {"loss_type": "dft"}}
    options |= {"pack_training": True, "document_masks": True, "save_log_spaced": True, "lr_scheduler_type": "linear"}
    recipe, adapter = write_recipe(tmp_path, tiny, sums, max_steps=2, samples_every=1, **options), tmp_path / "adapter"
    assert run("sft", recipe, adapter, "--lora", "true", "--bf16", "true", "--learning_rate", "1e-2") == 0
    results = results_of(adapter)
    assert results["after"]["eval_cross_entropy"] != results["before"]["eval_cross_entropy"]
    first, last = [entry for entry in metrics_of(adapter) if "loss" in entry]
    assert first["learning_rate"] > last["learning_rate"] > 0
    assert (adapter / "final" / "adapter_model.safetensors").exists()


def test_a_dry_run_shows_rows_and_writes_nothing(tiny: Path, tmp_path: Path, capsys: Any) -> None:
    rows = [{"prompt": "a long prompt " * 4, "completion": "x"}, *({"prompt": "p", "completion": "yes"} for _ in "123")]
    recipe = write_recipe(tmp_path, tiny, write_rows(tmp_path / "rows.jsonl", rows), validation_split=0)
    arguments = ["--answer_only", "true", "--max_length", 10, "--eval_strategy", "no", "--dry-run"]
    assert run("sft", recipe, tmp_path / "out", *arguments) == 0
    printed = capsys.readouterr()
    assert "note: 1 of 4 sequences are left out" in printed.err
    # A token a character, and one that ends each document: 4 * 14 + 1 + 1 of all 58 + 3 * 5.
    assert f"max_length=10 cuts 1 documents, {48 / 73:.1%} of all tokens" in printed.err
    assert "4 (1 an epoch)" in printed.out
    assert "  answer  'x<end>'" in printed.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_nan_stops_the_run(broken: str, tiny: Path, sums: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    if broken == "loss":
        with torch.no_grad():
            model.lm_head.weight[0] = float("nan")
    else:
        model.lm_head.weight.register_hook(lambda gradient: gradient * float("nan"))
    file = write_recipe(tmp_path, tiny, sums, validation_split=0, eval_strategy="no", save_steps=1, logging_steps=9)
    loaded = loading.load(load_recipe(file, {"output_dir": str(tmp_path / "out")}, "sft"))
    torch.backends.cuda.enable_cudnn_sdp(True)  # another test may have left it off
    trainer = sft.MeasuredSFT.prepare(replace(loaded, model=model))[1]()
    with pytest.raises(ConfigError, match="evaluation needs validation data"):
        trainer.evaluate()
    with pytest.raises(TrainingDiverged, match=rf"the {broken}.* is nan at step 1; try a lower learning_rate"):
        trainer.train()
    assert not list((tmp_path / "out").glob("checkpoint-*"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_nothing_is_reported_to_the_makers_of_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", False)
    trl_trainers.method("sft")
    assert huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY


@pytest.mark.parametrize(("name", "what"), [("packing", "a setting of its own"), ("loss_typ", "TRL does not know")])
def test_trl_options_are_trls_own(name: str, what: str, tiny: Path, sums: Path, tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path, tiny, sums, trl_options={name: True}), {"output_dir": "o"}, "sft")
    with pytest.raises(ConfigError, match=what):
        trl_trainers.trl_arguments(SFTConfig, recipe.training, packing=False)  # type: ignore[arg-type]
