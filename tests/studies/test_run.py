"""`ebft study run` and `ebft sweep` through the command: with stand-ins for the runs, which note what they do, and for
Slurm's commands, and once with real runs. What their files mean, and what is refused before anything starts."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from ebft import cli
from ebft.config.evaluation import EvalOptions
from ebft.config.recipe import load_recipe, read_values
from ebft.errors import ConfigError
from ebft.evaluate.tasks import task_settings
from ebft.runtime.files import locked
from ebft.studies import commands, figures, launchers
from ebft.studies.study import Job, Plan, Study, read_study, read_sweep
from tests.baselines.runs import SETTINGS as REAL
from tests.sandbox.sandboxed import wait_for

pytestmark = pytest.mark.usefixtures("offline")
STUB = Path(__file__).with_name("stub_run.py")
SETTINGS: dict[str, Any] = {"model": "some/model", "dataset": ["rows.jsonl"], "use_cpu": True}


def sweep(recipe: Path, *arguments: object) -> int:
    return cli.main(["sweep", "--config", str(recipe), *map(str, arguments)])


def run(study: Path, *arguments: object) -> int:
    return cli.main(["study", "run", str(study), *map(str, arguments)])


def write_study(folder: Path, methods: dict[str, Any], **changes: Any) -> Path:
    given = {"output_dir": str(folder / "out"), "seeds": [0, 1], "evaluation": {"tasks": ["humaneval"], "limit": 3}}
    given |= {**changes, "settings": {**SETTINGS, **changes.get("settings", {})}, "methods": methods}
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(given, sort_keys=False))
    return file


def attempts(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for runs and evaluations, which read nothing."""
    monkeypatch.setattr(launchers, "ENTRY", (str(STUB),))
    monkeypatch.setattr(commands, "check_inputs", lambda plan: None)
    # What `ebft eval` would write of its settings; to find out takes an import of seconds in every process.
    monkeypatch.setenv("STUB_SETTINGS", json.dumps(task_settings("humaneval", EvalOptions(tasks=["humaneval"]))))


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**SETTINGS, "output_dir": str(tmp_path / "out")}))
    return file


SLURM = ("--launcher", "slurm")


def started(out: Path) -> dict[str, int]:
    """How often each run was started."""
    runs = [place for place in (out / "runs").iterdir() if (place / "attempts.jsonl").exists()]
    return {place.name: sum("start" in a for a in attempts(place)) for place in runs}


@pytest.mark.usefixtures("stub")
def test_a_search_chooses_on_validation_and_the_others_follow(tmp_path: Path, capsys: Any) -> None:
    """The stand-in's cross-entropy is its learning rate, so the smallest is chosen. A model is evaluated before the
    next one is trained."""
    methods = {"sft": {"search": {"learning_rate": [0.5, 0.25]}}, "warm": {"method": "ebft", "after": "sft"}}
    assert run(write_study(tmp_path, methods), "--jobs", 1) == 0
    said = capsys.readouterr().err.splitlines()
    jobs = "jobs: 2 training runs (2 of 5 epochs) and 1 evaluations, 0 of them finished; 7 more wait for a search"
    assert said[0] == jobs
    finals = ["sft,learning_rate=0.25,seed=0", "sft,learning_rate=0.25,seed=1", "warm,seed=0", "warm,seed=1"]
    one_by_one = [word for name in finals for word in (name, f"evaluate-{name}")]
    began = [line.split(": ")[0] for line in said if ": started" in line]
    assert began == ["evaluate-base", "sft,learning_rate=0.5,seed=0", *one_by_one]
    out = tmp_path / "out"
    recipe = read_values(out / "recipes" / "warm,seed=1.yaml")
    assert recipe["model"] == str(out / "runs" / "sft,learning_rate=0.25,seed=1")
    assert recipe["feature_model"] == "some/model"
    base, sft, warm = json.loads((out / "study.json").read_text())["rows"]
    assert (base["title"], base["models"][0]["evaluation"]) == ("base", "evaluations/base")
    assert (sft["chosen"], warm["after"], warm["kind"]) == ({"learning_rate": 0.25}, "sft", "ebft")
    assert warm["models"][1]["evaluation"] == "evaluations/warm,seed=1"


@pytest.mark.usefixtures("stub")
def test_a_search_seed_of_its_own_and_a_candidate_that_diverges(tmp_path: Path) -> None:
    methods = {"sft": {"search": {"learning_rate": [1, 2]}, "settings": {"run_name": "diverge"}}}
    file = write_study(tmp_path, methods, search_seed=9)
    assert Plan(read_study(file)).unknown == 4  # two seeds and their tests
    assert run(file, "--jobs", 2) == 1
    expected = {"sft,learning_rate=1,seed=0", "sft,learning_rate=1,seed=1", "sft,learning_rate=1,seed=9"}
    assert {*started(tmp_path / "out")} == expected | {"sft,learning_rate=2,seed=9"}


def test_features_of_another_method_and_a_grid_for_all(tmp_path: Path) -> None:
    methods = {"first": {"method": "sft", "seeds": [0]}, "ebft": {"after": "first"}}
    plan = Plan(read_study(write_study(tmp_path, methods, settings={"feature_model": "first"})))
    first, ebft = plan.runs[0].settings, plan.runs[2].settings
    assert "feature_model" not in first
    assert ebft["feature_model"] == ebft["model"] == first["output_dir"]
    methods = {"sft": {"seeds": [0]}, "ebft": {"after": "sft", "seeds": [0]}}
    plan = Plan(read_study(write_study(tmp_path, methods, grid={"model": ["a/small", "b/large"]})))
    large = plan.runs[3].settings
    assert large["model"].endswith("sft,model=large,seed=0")
    assert large["feature_model"] == "b/large"
    assert [job.name for job in plan.evaluations][:2] == ["evaluate-base,model=small", "evaluate-base,model=large"]


@pytest.mark.usefixtures("stub")
def test_what_is_done_is_skipped_and_a_failure_stops_nobody_else(tmp_path: Path, capsys: Any) -> None:
    failing = {"sft": {"settings": {"run_name": "fail"}}, "child": {"method": "ebft", "after": "sft"}}
    file = write_study(tmp_path, {**failing, "ebft": {"settings": {"run_name": "once"}}}, seeds=[0])
    assert [run(file, "--jobs", 2) for _ in range(2)] == [1, 1]
    printed = capsys.readouterr()
    assert "sft,seed=0: failed: this point fails" in printed.out
    assert "2 jobs failed; the same command tries again" in printed.err
    assert started(tmp_path / "out") == {"sft,seed=0": 2, "ebft,seed=0": 2}
    states = {job.name: job.state for job in Plan(read_study(file)).jobs}
    assert (states["child,seed=0"], states["evaluate-ebft,seed=0"]) == ("to do", "finished")
    assert len(attempts(tmp_path / "out" / "evaluations" / "base")) == 1


@pytest.mark.usefixtures("stub")
def test_what_has_changed_is_made_again_and_a_copy_is_as_finished(tmp_path: Path) -> None:
    methods: dict[str, Any] = {"sft": {}, "warm": {"method": "ebft", "after": "sft"}}
    other = {"evaluation": {"tasks": ["humaneval"], "limit": 4}}
    longer = {**other, "settings": {"max_steps": 9}}
    for changes, runs, evaluations in ({}, 1, 1), (other, 1, 2), (longer, 2, 3):
        assert run(write_study(tmp_path, methods, seeds=[0], **changes), "--jobs", 2) == 0
        assert started(tmp_path / "out") == {"sft,seed=0": runs, "warm,seed=0": runs}
        assert len(attempts(tmp_path / "out" / "evaluations" / "sft,seed=0")) == evaluations
    shutil.copytree(tmp_path / "out", copied := tmp_path / "elsewhere" / "copy")
    for result in (copied / "evaluations").rglob("*"):
        os.utime(result, (0, 0))
    longer |= {"seeds": [0], "output_dir": str(copied)}
    assert not Plan(read_study(write_study(tmp_path, methods, **longer))).unfinished
    methods["sft"] = {"settings": {"max_steps": 7}}
    plan = Plan(read_study(write_study(tmp_path, methods, **longer)))
    assert [job.name for job in plan.unfinished] == ["sft,seed=0"]


def test_inputs_are_looked_at_before_anything_starts(tiny: Path, sums: Path, tmp_path: Path, capsys: Any) -> None:
    real = {**REAL, "model": str(tiny), "dataset": [str(sums)], "validation_dataset": str(sums), "max_steps": 1}
    evaluation = {"tasks": ["mbpp"], "mbpp": "three.jsonl"}
    for settings, words in (
        ({"model": "smollm2-153m"}, "did you mean 'smollm2-135m'"),
        ({}, "three.jsonl: no such file"),
    ):
        file = write_study(tmp_path, {"sft": {"settings": settings}}, settings=real, evaluation=evaluation)
        assert run(file, "--dry-run") == run(file) == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("stub")
def test_a_sweep_has_one_point_at_a_time_on_each_gpu(
    recipe: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    arguments = ("--set", "learning_rate=1,2,3,4,5", "--command", "sft", "--use_cpu", "false")
    assert sweep(recipe, *arguments, "--dry-run") == 0
    assert capsys.readouterr().out.startswith("learning_rate=1: to do")
    out = tmp_path / "out"
    with locked(out / "sweep.lock"):
        assert sweep(recipe, *arguments) == sweep(recipe, *arguments, "--per-gpu", 0) == 2
    assert sweep(recipe, *arguments) == 0
    spans: dict[str, list[tuple[float, float]]] = {}
    for point in out.glob("learning_rate=*"):
        start, end = attempts(point)
        assert start["command"] == "sft"
        spans.setdefault(start["gpu"], []).append((start["start"], end["end"]))
    assert set(spans) == {"4", "6"}
    for on_one_gpu in spans.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(on_one_gpu)))
    assert (out / "compare" / "compare.html").exists()


@pytest.mark.usefixtures("stub")
def test_ctrl_c_stops_the_points_and_says_how_to_resume(recipe: Path, tmp_path: Path, capsys: Any) -> None:
    runs = [tmp_path / "out" / f"run_name=wait,learning_rate={rate}" for rate in (1, 2)]

    def stop() -> None:
        wait_for(lambda: all((point / "attempts.jsonl").exists() for point in runs), 60)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    (stopping := threading.Thread(target=stop)).start()
    assert sweep(recipe, "--set", "run_name=wait", "--set", "learning_rate=1,2", "--jobs=2") == 130
    stopping.join()
    assert "stopped; the same command resumes from here" in capsys.readouterr().err
    assert all((point / "interrupted").exists() for point in runs)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch runs every task of an array at once, and notes other jobs in `later`; squeue says what is in `queue`."""
    folder, log = tmp_path / "bin", tmp_path / "cluster"
    folder.mkdir()
    log.mkdir()
    (folder / "sbatch").write_text(
        f"""#!/bin/bash
echo "$2" >> {log}/submitted
[ -e {log}/never ] && echo 4711 && exit
[ -e "$2" ] || {{ printf '%s\\n' "$@" > {log}/later; echo 4712; exit; }}
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$2")
for task in $(seq 0 "$last"); do (cd / && SLURM_ARRAY_TASK_ID=$task bash "$2" >> {log}/output 2>&1); done
echo "4711;cluster"
"""
    )
    (folder / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {log}/requeued\n')
    (folder / "squeue").write_text(f"#!/bin/bash\ncat {log}/queue 2>/dev/null\nexit 0\n")
    for file in folder.iterdir():
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return log


@pytest.mark.usefixtures("stub")
def test_an_array_job_runs_what_is_left(recipe: Path, tmp_path: Path, cluster: Path, capsys: Any) -> None:
    arguments = [*SLURM, "--set", "run_name=good,once", "--slurm", "partition=gpu", "--slurm", "no-requeue", "--jobs=3"]
    file = tmp_path / "out" / "sweep.sbatch"
    assert sweep(recipe, *arguments, "--dry-run") == 0
    assert f"written and not submitted: sbatch {file}" in capsys.readouterr().out
    assert not (cluster / "submitted").exists()
    assert sweep(recipe, *arguments) == 0
    assert "submitted as job 4711" in capsys.readouterr().err
    lines = file.read_text().splitlines()
    assert {"#SBATCH --array=0-1%3", "#SBATCH --partition=gpu", "#SBATCH --no-requeue"} <= set(lines)
    # The second time only the one that failed is in the array; a third time there is nothing to submit.
    assert sweep(recipe, *arguments) == sweep(recipe, *arguments) == 0
    assert "#SBATCH --array=0-0%3\n" in file.read_text()
    assert len((cluster / "submitted").read_text().splitlines()) == 2
    assert "run_name=once: finished\n" in capsys.readouterr().out

    # A task whose time is up goes back into the queue.
    assert sweep(recipe, *SLURM, "--set", "run_name=wait", "--dry-run") == 0
    variables = {**os.environ, "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "0"}
    with subprocess.Popen(["bash", str(file)], env=variables, start_new_session=True) as process:
        wait_for((tmp_path / "out" / "run_name=wait" / "attempts.jsonl").exists, 60)
        assert not (cluster / "requeued").exists()
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 75, "the run has ended by itself"
    assert (cluster / "requeued").read_text() == "requeue 4711_0\n"


@pytest.mark.usefixtures("stub")
def test_a_study_is_submitted_stage_by_stage(tmp_path: Path, cluster: Path, capsys: Any) -> None:
    """First the search, then the seed that is left and what starts from it, where jobs fail."""
    bad = {"method": "ebft", "after": "sft", "settings": {"run_name": "fail"}}
    methods = {"sft": {"search": {"learning_rate": [0.5, 0.25]}}, "bad": bad}
    three_stages = (write_study(tmp_path, methods, evaluation=False), *SLURM, "--slurm", "partition=gpu")
    # A chain ends where tasks never start.
    (cluster / "never").touch()
    assert run(*three_stages) == run(*three_stages, "--next-stage") == 0
    assert len((cluster / "submitted").read_text().splitlines()) == 2, "one stage, and what would follow"
    (cluster / "never").unlink()
    assert run(*three_stages) == 0
    script, later = tmp_path / "out" / "study.sbatch", cluster / "later"
    assert "#SBATCH --array=0-1\n" in script.read_text(), "two candidates"
    (cluster / "queue").write_text("4700\n4712\n")
    assert run(*three_stages) == 2
    assert "job 4711 4712 of this study is still in the queue" in capsys.readouterr().err
    # As Slurm would: the job that waited runs the command, which submits a stage and the next job, until there is none.
    for stage in (["sft,learning_rate=0.25,seed=1", "bad,seed=0"], ["bad,seed=1"]):
        asked = dict(line.lstrip("-").partition("=")[::2] for line in later.read_text().splitlines())
        later.unlink()
        assert asked.items() >= {"dependency": "afterany:4711", "partition": "gpu"}.items()
        assert "gpus-per-task" not in asked
        words = shlex.split(asked["wrap"])
        assert words[-1] == "--next-stage"
        assert cli.main(words[words.index("study") :]) == 0
        assert all(f"{name}.yaml" in script.read_text() for name in stage)
        assert f"0-{len(stage) - 1}" in script.read_text()
    assert not later.exists(), "the chain has ended, though a job has failed"
    jobs = json.loads((tmp_path / "out" / "study.json").read_text())["jobs"]
    states = [jobs[name]["state"] for name in ("sft,learning_rate=0.25,seed=1", "bad,seed=0")]
    assert states == ["finished", "failed: this point fails"]
    # By hand, what failed is tried again, and nothing waits for it.
    (cluster / "queue").unlink()
    assert run(*three_stages) == 0
    assert "bad,seed=0" in script.read_text()
    assert not later.exists()


def test_real_runs_and_their_report(tiny: Path, sums: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    settings = {**REAL, "model": str(tiny), "dataset": [str(sums)], "max_steps": 2, "test_split": 8}
    evaluation = {"sequences": 2, "profile_lengths": [1, 4], "profile_stride": 8, "also_at_temperatures": [0.3]}
    file = write_study(tmp_path, {"ebft": {}}, seeds=[0], settings=settings, evaluation=evaluation)
    monkeypatch.setattr(launchers, "_start", in_this_process)
    assert run(file) == 0
    out = tmp_path / "out"
    assert not Plan(read_study(file)).unfinished
    data = json.loads((out / "runs" / "ebft,seed=0" / "data.json").read_text())
    assert data["documents"] == round(0.8 * (36 - 8))  # neither those of validation nor those of the test
    results = json.loads((out / "evaluations" / "base" / "results.json").read_text())["tasks"]["calibration"]
    assert (results["settings"]["test_split"], "cfm_temperature_0.3" in results["metrics"]) == (8, True)
    monkeypatch.setattr(figures, "draw", lambda evidence: {})  # takes seconds, and is tested elsewhere
    assert cli.main(["study", "report", str(out)]) == 0
    assert "feature-matching loss, on the test data: " in capsys.readouterr().out
    assert (out / "report" / "report.html").exists()


def in_this_process(job: Job, *_: object) -> Any:
    """A job that needs no imports of its own."""
    job.prepare()
    return SimpleNamespace(returncode=(code := cli.main(job.arguments)), poll=lambda: code)


# ---- files -----------------------------------------------------------------------------------------------------------


TESTED = {**SETTINGS, "test_split": 10}
METHODS: dict[str, Any] = {
    "sft": {"search": {"learning_rate": [1, "2e-0"]}},
    "ebft": {"grid": {"gamma": [0, 0.1]}},
    "warm": {"method": "ebft", "after": "sft"},
}


def read(folder: Path, **changes: Any) -> Study:
    given = {"methods": METHODS, "settings": TESTED, "evaluation": {}, **changes}
    return read_study(write_study(folder, **given))


def swept(tmp_path: Path, sets: list[str], command: str = "train", **changes: Any) -> Study:
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**SETTINGS, "output_dir": str(tmp_path / "out"), **changes}, sort_keys=False))
    return read_sweep(file, {}, sets, command)


def test_rows_are_methods_in_their_settings(tmp_path: Path) -> None:
    rows = read(tmp_path, seeds=[0, 1, 0]).rows
    assert [row.name for row in rows] == ["sft", "ebft,gamma=0", "ebft,gamma=0.1", "warm"]
    assert rows[0].candidates == [{"learning_rate": 1.0}, {"learning_rate": 2.0}]
    assert (rows[3].command, rows[3].needs, rows[3].seeds) == ("train", {"model": "sft"}, [0, 1])
    # Settings of recipes lie under those of the study.
    (tmp_path / "all.yaml").write_text("gamma: 0.5\nalpha: 0.5\nhorizon: 4\nseed: 9\noutput_dir: x\n")
    (tmp_path / "own.yaml").write_text("alpha: 0.25\nhorizon: 2\n")
    methods = {"ebft": {"recipe": "own.yaml", "settings": {"stride": 4}}}
    (row,) = read(tmp_path, recipe="all.yaml", settings={**TESTED, "horizon": 3}, methods=methods).rows
    expected = {"gamma": 0.5, "alpha": 0.25, "horizon": 3, "stride": 4}
    assert row.settings.items() >= expected.items()
    assert not row.settings.keys() & {"seed", "output_dir"}


def test_the_test_measures_as_validation_does(tmp_path: Path) -> None:
    settings = {"horizon": 3, "samples": 5, "split_seed": 7, "per_device_eval_batch_size": 6, "eval_samples": 8}
    expected = {"horizon": 3, "rollouts": 8, "split_seed": 7, "test_split": 10, "calibration_data": "rows.jsonl"}
    expected |= {"calibration_batch_size": 6, "feature_model": "some/model", "calibration_split": "train"}
    assert read(tmp_path, settings={**TESTED, **settings}).evaluation.items() >= expected.items()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": {"ebft": {"grid": {"gama": [0]}}}}, "ebft,gama=0: unknown setting 'gama'.*; did you mean 'gamma'"),
        ({"methods": {"ebft": {"grid": {"gamma": [0]}, "search": {"gamma": [1]}}}}, "both in `grid` and in `search`"),
        ({"methods": {"sft": {"grid": {"max_length": [8, 9]}}, "ebft": {"after": "sft"}}}, "with the same `grid`"),
        ({"choose_by": "crossentropy"}, "does not measure .*crossentropy.* did you mean 'cross_entropy'"),
        ({"settings": {**TESTED, "validation_split": 0}}, "does not measure .*set validation_split"),
        ({"settings": {**TESTED, "test_split": 0}}, "no test data; set `test_split`"),
        ({"evaluation": {"calibration_data": "rows.jsonl", "calibration_split": "train", "test_split": 0}}, "trained"),
        # A file has no splits: by another name of the split it is the same text.
        (
            {
                "settings": {**TESTED, "test_split": 0, "validation_dataset": __file__},
                "evaluation": {"calibration_data": __file__, "calibration_split": "test"},
            },
            "chosen",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, **changes)


def test_a_sweep_is_every_combination_once_in_order_and_flags_win_over_the_section(tmp_path: Path) -> None:
    section = {"gamma": [7], "feature_layers": [[0.5], [0.25, 0.75]]}
    runs = Plan(swept(tmp_path, ["gamma=0", "gamma=0.1", "learning_rate=1e-6", "model=a/one"], sweep=section)).runs
    layers, last = ("0.5", "0.25+0.75"), "learning_rate=1e-06,model=one"
    names = [f"gamma={gamma},feature_layers={taps},{last}" for gamma in (0, 0.1) for taps in layers]
    assert [run.name for run in runs] == names
    assert [run.output for run in runs] == [tmp_path / "out" / name for name in names]
    assert not (tmp_path / "out").exists()
    for run in runs:
        run.prepare()
        assert load_recipe(run.arguments[2], {}).given == run.settings
    assert runs[3].settings["feature_layers"] == [0.25, 0.75]
    assert len(Plan(swept(tmp_path, ["max_length=128,256"], "sft")).runs) == 2
    for sets, words in ([], "a sweep needs --set"), (["gamma=0.1,0.10"], "same name"), (["gamma=fast"], "not a number"):
        with pytest.raises(ConfigError, match=words):
            swept(tmp_path, sets)
