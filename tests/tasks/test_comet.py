"""COMET against a stand-in for the library, in a process of its own as the real one is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ebft.errors import ConfigError
from ebft.problems.translation import Pair
from ebft.tasks import comet
from ebft.tasks.translation_scores import TranslationScoring, score_translations
from tests.problems.pairs import PAIRS

COMET = """
def download_model(name):
    assert name == "some/model"
    return "downloaded"
class Model:
    def predict(self, rows, batch_size, gpus):
        assert set(rows[0]) == {"src", "mt", "ref"}
        class Output: scores = [len(r["mt"]) / 10 + (r["ref"] == "two") for r in rows]
        return Output
def load_from_checkpoint(path):
    assert path == "downloaded" or path.endswith("model.ckpt")
    return Model()
"""


class TestComet:
    @pytest.fixture(autouse=True)
    def stand_in(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "library"
        folder.mkdir()
        (folder / "comet.py").write_text(COMET)
        (folder / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
        monkeypatch.setenv("PYTHONPATH", str(folder))
        return folder

    def test_scores_reach_the_metrics(self) -> None:
        found = score_translations(
            PAIRS, [["abcd"], ["ab"], ["a"], ["abc"]], TranslationScoring(bootstrap=0, comet_model="some/model")
        )
        assert found["metrics"]["comet"]["value"] == pytest.approx(0.25)
        assert [row["comet"] for row in found["sentences"]] == [0.4, 0.2, 0.1, 0.3]
        texts = [["a", "abc"], ["ab", "b"], ["a", "a"], ["abc", "c"]]
        found = score_translations(PAIRS, texts, TranslationScoring(bootstrap=0, comet_model="some/model"))
        assert found["metrics"]["best_of_1_comet"]["value"] == pytest.approx((0.2 + 0.15 + 0.1 + 0.2) / 4)

    def test_several_references_are_averaged(self, tmp_path: Path) -> None:
        folder = tmp_path / "model" / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "model.ckpt").write_text("")
        pairs = [Pair("1", "s", ["one", "two"]), Pair("2", "s", ["two"])]
        scoring = TranslationScoring(bootstrap=0, comet_model=str(tmp_path / "model"))
        found = score_translations(pairs, [["a"], ["a"]], scoring)["sentences"]
        assert [row["comet"] for row in found] == pytest.approx([0.6, 1.1])

    def test_not_installed_and_failing(self, stand_in: Path) -> None:
        with pytest.raises(ConfigError, match="COMET with the model 'other' failed: AssertionError"):
            score_translations(PAIRS, [["a"]] * 4, TranslationScoring(comet_model="other"))
        (stand_in / "comet.py").write_text("raise ImportError('no comet')")
        with pytest.raises(ConfigError, match=r"COMET needs unbabel-comet, which .* name it with --comet-python"):
            score_translations(PAIRS, [["a"]] * 4, TranslationScoring(comet_model="some/model"))
        with pytest.raises(ConfigError, match="--comet-python /nowhere/python: no such program"):
            score_translations(
                PAIRS, [["a"]] * 4, TranslationScoring(comet_model="some/model", comet_python="/nowhere/python")
            )

    def test_the_worker_needs_nothing_of_ebft(self) -> None:
        worker = Path(comet.__file__).with_name("comet_worker.py")
        assert "ebft" not in "".join(line for line in worker.read_text().splitlines() if "import" in line)
        assert os.access(worker, os.R_OK)
