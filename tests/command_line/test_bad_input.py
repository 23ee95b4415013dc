"""Bad input gives one line on standard error, code 2 and no output folder."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tqdm import tqdm

from ebft import EBFTTrainer, cli
from ebft.errors import TrainingDiverged
from tests.command_line.commands import ROWS, Refused, ebft, write_rows
from tests.tiny_tokenizer import byte_tokenizer


class TestBadInput:
    def test_bad_recipe_through_a_process(self, recipe: Path, tmp_path: Path) -> None:
        done = ebft("train", "--config", recipe, "--output_dir", tmp_path / "out", "--horizen", 4)
        assert done.returncode == 2
        assert done.stderr == "ebft: unknown option '--horizen'; did you mean '--horizon'?\n"
        assert done.stdout == ""
        assert not (tmp_path / "out").exists()

    def test_missing_file(self, refused: Refused, tmp_path: Path) -> None:
        line = refused("--dataset", tmp_path / "nothing.jsonl")
        assert line == f"ebft: {tmp_path}/nothing.jsonl: no such file or folder"

    def test_a_damaged_model(self, refused: Refused, model: Path, tmp_path: Path) -> None:
        shutil.copytree(model, tmp_path / "damaged")
        (tmp_path / "damaged" / "model.safetensors").write_text("garbage")
        assert "damaged' cannot be loaded: " in refused("--model", tmp_path / "damaged")

    def test_an_error_does_not_stand_on_the_line_of_a_progress_bar(self, capsys: pytest.CaptureFixture[str]) -> None:
        with tqdm(total=3, file=sys.stderr) as bar:
            bar.update()
            assert cli._print_error("something is wrong") == 2
        assert capsys.readouterr().err.splitlines()[-1] == "ebft: something is wrong"

    def test_a_run_that_has_diverged_says_where_to_begin_anew(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def check(trainer: EBFTTrainer, step: int) -> Callable[[float], None]:
            def found(reward: float) -> None:
                if step == 3:
                    raise TrainingDiverged("the mean reward is 1e9 at step 3")

            return found

        monkeypatch.setattr(EBFTTrainer, "_reward_check", check)
        assert cli.main(["train", "--config", str(recipe), "--output_dir", str(tmp_path / "out")]) == 1
        last = tmp_path / "out" / "checkpoint-2"
        assert capsys.readouterr().err.splitlines()[-2:] == [
            "ebft: the mean reward is 1e9 at step 3",
            f"ebft: the last good checkpoint is {last}; a new run can begin there: --model {last}",
        ]
        monkeypatch.undo()
        again = ["--model", str(last), "--output_dir", str(tmp_path / "again"), "--max_steps", "1"]
        assert cli.main(["train", "--config", str(recipe), *again]) == 0

    def test_one_sequence_has_no_standard_error(
        self, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--output_dir", str(tmp_path / "out"), "--validation_sequences", "1", "--max_steps", "1"]
        assert cli.main(["train", "--config", str(recipe), *arguments]) == 0
        printed = capsys.readouterr().out
        assert "cross-entropy, all tokens" in printed
        assert "nan" not in printed

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        results = json.loads((tmp_path / "out" / "results.json").read_text(), parse_constant=refuse)
        assert results["after"]["eval_cross_entropy_se"] is None
        assert "nan" not in (tmp_path / "out" / "final" / "README.md").read_text(encoding="utf-8")

    def test_help_into_a_pipe_that_closes(self) -> None:
        command = f"{shlex.quote(sys.executable)} -m ebft.cli train --help | head -n 1"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
        assert done.stdout.startswith("usage: ebft train")
        assert done.stderr == ""

    def test_reporting_to_what_is_not_there(self, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers.integrations import integration_utils

        monkeypatch.setattr(integration_utils, "get_available_reporting_integrations", lambda: ["tensorboard"])
        line = refused("--report_to", "tensorbord")
        assert "report_to='tensorbord' is not known or not installed; did you mean 'tensorboard'?" in line

    def test_empty_file(self, refused: Refused, tmp_path: Path) -> None:
        (tmp_path / "rows.jsonl").touch()
        assert refused("--dataset", tmp_path / "rows.jsonl") == f"ebft: {tmp_path}/rows.jsonl: the file is empty"

    def test_file_without_rows(self, refused: Refused, tmp_path: Path) -> None:
        (tmp_path / "rows.jsonl").write_text("\n\n")
        assert refused("--dataset", tmp_path / "rows.jsonl").endswith("rows.jsonl: no rows")

    def test_broken_json_line(self, refused: Refused, tmp_path: Path) -> None:
        file = write_rows(tmp_path / "rows.jsonl", ROWS)
        file.write_text(file.read_text() + '{"prompt": \n')
        assert f"rows.jsonl: line {len(ROWS) + 1} is not valid JSON" in refused("--dataset", file)

    def test_missing_column(self, refused: Refused, tmp_path: Path) -> None:
        file = write_rows(tmp_path / "rows.jsonl", [{"question": "a", "answer": "b"}])
        line = refused("--dataset", file)
        assert "row 1: a row needs 'text'" in line
        assert "it has 'question', 'answer'" in line

    def test_documents_shorter_than_one_anchor(self, refused: Refused, tmp_path: Path) -> None:
        file = write_rows(tmp_path / "rows.jsonl", [{"text": "ab"}] * 20)
        line = refused("--dataset", file, "--document_masks")
        assert "all documents are shorter than one anchor needs: the longest has 3 tokens" in line
        assert "no rollout can begin in the data: the longest answer has " in refused(
            "--answer_only", "--horizon", 40, "--stride", 1
        )

    def test_tokenizer_without_end_token(self, refused: Refused, tmp_path: Path) -> None:
        byte_tokenizer(end=None).save_pretrained(tmp_path / "tokenizer")
        assert "the tokenizer has no end token" in refused("--tokenizer", tmp_path / "tokenizer")

    def test_vocabulary_larger_than_the_models(self, refused: Refused, tmp_path: Path) -> None:
        byte_tokenizer(extra_tokens=1).save_pretrained(tmp_path / "tokenizer")
        assert "260 tokens but the model only 259 embeddings" in refused("--tokenizer", tmp_path / "tokenizer")

    def test_no_chat_template(self, refused: Refused, tmp_path: Path) -> None:
        byte_tokenizer(chat_template=None).save_pretrained(tmp_path / "tokenizer")
        file = write_rows(tmp_path / "rows.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
        line = refused("--tokenizer", tmp_path / "tokenizer", "--dataset", file)
        assert "row 1: the tokenizer has no chat template" in line

    def test_one_document_cannot_be_split(self, refused: Refused, tmp_path: Path) -> None:
        file = write_rows(tmp_path / "rows.jsonl", ROWS[:1])
        assert "one document cannot be split; set validation_split=0" in refused("--dataset", file)

    def test_near_miss_of_a_builtin_dataset(self, refused: Refused) -> None:
        assert "did you mean 'stdlib-functions'?" in refused("--dataset", "stdlib-function")
        assert "`datasets`, and HF_HUB_OFFLINE is set; give a local copy" in refused("--dataset", "some/data")

    def test_model_that_is_not_there(self, refused: Refused, tmp_path: Path) -> None:
        assert "no such folder" in refused("--model", tmp_path / "no-model")
        assert "run `ebft fetch smollm2-135m` first" in refused("--model", "smollm2-135m")

    def test_config_typos(self, refused: Refused, tmp_path: Path) -> None:
        assert "did you mean '--learning-rate'?" in refused("--learning_rat", "1")
        assert "did you mean 'reference'?" in refused("--whitening", "refrence")
        assert "horizon='many' is not a whole number" in refused("--horizon", "many")
        assert "temperature=0.0 must be above 0" in refused("--temperature", "0")
        assert "model_dtype='float31' is not one of" in refused("--model_dtype", "float31")
        assert "constantly is not a valid SchedulerType" in refused("--lr_scheduler_type", "constantly")
        broken = tmp_path / "broken.yaml"
        broken.write_text("model: [\n")
        assert "broken.yaml: not valid YAML" in refused("--config", broken)
        assert "no such recipe" in refused("--config", tmp_path / "nothing.yaml")

    def test_output_folder_with_another_run(self, refused: Refused, tmp_path: Path) -> None:
        output = tmp_path / "used"
        (output / "checkpoint-5").mkdir(parents=True)
        (output / "checkpoint-5" / "model.safetensors").write_bytes(b"precious")
        assert "already holds a run" in refused(output=output)
        (output / "recipe.yaml").write_text("model: another\n")
        assert "already holds a run" in refused(output=output)

    def test_output_folder_with_something_else(self, refused: Refused, tmp_path: Path) -> None:
        output = tmp_path / "used"
        output.mkdir()
        (output / "thesis.tex").write_text("precious")
        assert "is not empty and holds no run" in refused(output=output)
        assert "is not empty and holds no run" in refused("--resume", output=output)

    def test_output_folder_that_is_a_file(self, refused: Refused, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.write_text("precious")
        assert refused(output=file) == f"ebft: output_dir={file} is a file; choose a folder"
        assert file.read_text() == "precious"

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            (["--feature_source", "adapter_off"], "adapter_off"),
            (["--feature_layers", "99"], "holds 99 but the network has 2 layers"),
            (["--attention_backend", "flex"], "flex"),
            (["--feature_model", "./no-such-model"], "no-such-model"),
        ],
    )
    def test_settings_that_do_not_fit_the_model_or_machine(
        self, refused: Refused, tmp_path: Path, arguments: list[str], what: str
    ) -> None:
        # The folder itself may be made; a recipe in it would make the next try look like another run.
        (tmp_path / "out").mkdir()
        assert what in refused(*arguments)
