"""Killed, preempted or damaged at any moment and resumed, a run ends with the very same weights, bit for bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ebft.errors import ConfigError, Preempted
from ebft.runtime import processes
from ebft.train import checkpoints
from ebft.train.preemption import Preemption
from tests import killed_runs
from tests.distributed import group
from tests.killed_runs import final_weights, metrics

STEPS = 8


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's model, tokenizer, data and recipe, all tiny."""
    home = tmp_path_factory.mktemp("user")
    alphabet = {chr(97 + i): i for i in range(26)} | {" ": 26, "<end>": 27}
    tokenizer = Tokenizer(models.WordLevel(alphabet, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(home / "model")
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2)
    LlamaForCausalLM(LlamaConfig(vocab_size=28, max_position_embeddings=64, **sizes)).save_pretrained(home / "model")
    rows = [{"text": " ".join(chr(97 + (i * k + j) % 26) for j in range(30))} for i in range(24) for k in (1, 2)]
    (home / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = dict(
        model=str(home / "model"),
        dataset=[str(home / "data.jsonl")],
        context_length=32,
        answer_only=False,
        horizon=4,
        stride=4,
        samples=3,
        gamma=0.1,
        feature_source="average",
        feature_decay=0.9,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        max_steps=STEPS,
        save_steps=2,
        save_total_limit=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        validation_split=8,
        samples_every=0,
        use_cpu=True,
    )
    (home / "recipe.yaml").write_text(yaml.safe_dump(settings))
    return home / "recipe.yaml"


def run(recipe: Path, output: Path, *flags: object, kill_at: str = "") -> tuple[int, str]:
    """The code of `ebft train` and what it said, in a process forked from one that has imported everything."""
    arguments, variables = killed_runs.arguments(recipe, output, *flags), killed_runs.variables(recipe, kill_at)
    ended = group.run(1, killed_runs.main, arguments, folder=output.parent, variables=variables)
    return ended.codes[0], ended.said[0]


@pytest.fixture(scope="module")
def uninterrupted(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "uninterrupted"
    code, said = run(recipe, output)
    assert code == 0, said
    return output


@pytest.mark.parametrize(
    "moments",
    [
        ["step:5"],
        ["step:1"],  # before the first checkpoint
        ["write:checkpoint-4/optimizer.pt", "mark:checkpoint-6"],
    ],
    ids=str,
)
def test_killed_and_resumed_gives_the_same_weights(
    recipe: Path, uninterrupted: Path, tmp_path: Path, moments: list[str]
) -> None:
    output = tmp_path / "run"
    for number, moment in enumerate(moments):
        code, said = run(recipe, output, *(["--resume"] if number else []), kill_at=moment)
        assert code == -9, said
    code, said = run(recipe, output, "--resume")
    assert code == 0, said
    if "write" in moments[0]:
        assert "checkpoint-6 was cut off" in said
    expected, found = final_weights(uninterrupted), final_weights(output)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    assert metrics(output) == metrics(uninterrupted)
    assert sorted(p.name for p in output.glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8"]


RESUME = "ebft train --config {}/recipe.yaml --resume"


def test_preempted_and_damaged_gives_the_same_weights(recipe: Path, uninterrupted: Path, tmp_path: Path) -> None:
    """SIGTERM in the step after the fourth; then a bit of what was saved is lost, and the checkpoint before is used."""
    output = tmp_path / "run"
    code, said = run(recipe, output, kill_at="notice:4")
    assert code == 75, said
    assert "ebft: stopped by SIGTERM\n" in said
    assert f"the last good checkpoint is {output}/checkpoint-5; continue with: {RESUME.format(output)}" in said
    assert not (output / "final").exists()
    assert not (output / "run.lock").exists()
    flip_a_bit(output / "checkpoint-5" / "optimizer.pt")
    code, said = run(recipe, output, "--resume")
    assert code == 0, said
    assert "checkpoint-5 is damaged (missing or changed: optimizer.pt); it is set aside" in said
    assert f"resuming from {output}/checkpoint-4" in said
    expected, found = final_weights(uninterrupted), final_weights(output)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert metrics(output) == metrics(uninterrupted)


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


class TestDamage:
    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Path:
        for step in (2, 4):
            folder = tmp_path / f"checkpoint-{step}"
            (folder / "shards").mkdir(parents=True)
            (folder / "optimizer.pt").write_bytes(b"optimizer")
            (folder / "shards" / "0.distcp").write_bytes(b"weights")
            checkpoints.mark_complete(folder)
        return tmp_path / "checkpoint-4"

    def test_what_is_wrong_is_named(self, checkpoint: Path) -> None:
        assert checkpoints.damage(checkpoint) == []
        (checkpoint / "optimizer.pt").unlink()
        flip_a_bit(checkpoint / "shards" / "0.distcp")
        assert checkpoints.damage(checkpoint) == ["optimizer.pt", "shards/0.distcp"]
        for mark in '{"files": [', "{}", '{"files": {"optimizer.pt": {}}}':
            (checkpoint / "COMPLETE").write_text(mark)
            assert checkpoints.damage(checkpoint) == ["COMPLETE"]

    def test_the_one_before_is_used(self, checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
        checkpoints.clear_away(checkpoint.parent)
        assert checkpoints.last_checkpoint(checkpoint.parent) == checkpoint
        (checkpoint / "optimizer.pt").unlink()
        checkpoints.clear_away(checkpoint.parent)
        assert "checkpoint-4 is damaged (missing or changed: optimizer.pt); it is set aside" in caplog.text
        assert checkpoints.last_checkpoint(checkpoint.parent) == checkpoint.parent / "checkpoint-2"
        assert (checkpoint.parent / "damaged-checkpoint-4" / "shards").is_dir(), "kept, to be looked at"

    def test_a_run_without_a_sound_one_does_not_begin_again(self, checkpoint: Path) -> None:
        for folder in checkpoint.parent.glob("checkpoint-*"):
            (folder / "optimizer.pt").unlink()
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"has no checkpoint that is sound: checkpoint-4 is damaged"):
                checkpoints.clear_away(checkpoint.parent)


def test_interrupted_and_full_disk_say_where_the_last_good_checkpoint_is(recipe: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    code, said = run(recipe, output, kill_at="interrupt:0")  # in the first step, before any checkpoint was due
    assert code == 130
    assert "saving a checkpoint after this step; Ctrl-C again stops at once" in said
    assert f"the last good checkpoint is {output}/checkpoint-1; continue with: {RESUME.format(output)}" in said
    code, said = run(recipe, output, "--resume", kill_at="full:checkpoint-4/scheduler.pt")
    assert code == 1
    assert "the disk is full" in said
    assert f"the last good checkpoint is {output}/checkpoint-2" in said
    assert not (output / "checkpoint-4").exists()


@pytest.mark.parametrize("pressed", ["while loading", "twice", "with others"])
def test_what_ctrl_c_stops_at_once(pressed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preemption = Preemption()
    preemption.at_once = pressed == "while loading"
    monkeypatch.setattr(processes, "count", lambda: 2 if pressed == "with others" else 1)
    with preemption.listen():
        if pressed == "twice":
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_others_that_left_first_after_a_notice_to_all_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "count", lambda: 2)

    def in_training(error: Exception, notice: bool) -> None:
        preemption = Preemption()
        preemption.at_once = False
        with preemption.listen():
            if notice:
                signal.raise_signal(signal.SIGTERM)
            raise error

    with pytest.raises(Preempted):
        in_training(RuntimeError("Connection closed by peer"), notice=True)
    with pytest.raises(RuntimeError):
        in_training(RuntimeError("a mistake"), notice=True)
    with pytest.raises(RuntimeError):
        in_training(RuntimeError("Connection closed by peer"), notice=False)


def test_a_used_output_folder_is_refused_without_resume(recipe: Path, uninterrupted: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in uninterrupted.rglob("*")}
    code, said = run(recipe, uninterrupted)
    assert code == 2
    assert said.count("\n") == 1
    assert "already holds a run" in said
    assert {p: p.stat().st_mtime_ns for p in uninterrupted.rglob("*")} == before
