"""Scores of translations: BLEU and chrF by sacrebleu, COMET by unbabel-comet; best of k.

What is measured of one translation per sentence: corpus BLEU and chrF, exactly as the `sacrebleu` command, and the
means of sentence BLEU and chrF. Of n samples, for each k:

- `best_of_k_sentence_bleu` (and chrf, comet): for each sentence the expected maximum of the metric over k of the n
  samples drawn without replacement, averaged over sentences: sum_i s_(i) C(i-1, k-1) / C(n, k) over the sorted scores,
  unbiased for k fresh samples as pass@k is;
- `best_of_k_bleu` (and chrf): corpus scores of the sentences picked by their own sentence score. The samples are split
  into floor(n/k) groups of k in the order they were made, one corpus is picked from each, and the scores averaged.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError
from ebft.problems.translation import LANGUAGE_NAMES, Pair, one_line

K = (1, 4, 16)
COMET_WORKER, NOT_INSTALLED = Path(__file__).with_name("comet_worker.py"), 3


@dataclass(frozen=True)
class TranslationScoring:
    """
    Args:
        target_language: a code such as `zh`; sacrebleu has tokenizers of their own for zh, ja and ko.
        bleu_tokenize: sacrebleu's tokenizer, if not the one it has for the language.
        comet_model: name or path of a COMET model; None: no COMET.
        comet_python: interpreter of an environment that has unbabel-comet, if not this one.
        bootstrap: resamples for the standard errors of corpus scores; 0: none.
    """

    target_language: str = ""
    bleu_tokenize: str | None = None
    comet_model: str | None = None
    comet_python: str | None = None
    bootstrap: int = 1000


def expected_best(scores: Sequence[float], k: int) -> float:
    """The expected maximum of k of the scores, drawn without replacement."""
    n = len(scores)
    if not 1 <= k <= n:
        raise ValueError(f"k={k} must lie between 1 and the number of samples, {n}")
    ways = math.comb(n, k)
    return math.fsum(s * (math.comb(i, k - 1) / ways) for i, s in enumerate(sorted(scores)))


def score_translations(
    pairs: Sequence[Pair], texts: Sequence[Sequence[str]], scoring: TranslationScoring
) -> dict[str, Any]:
    """Scores of the translations of each pair. One for each: `bleu` and so on; several: `best_of_k_...` as well.

    Returns {"metrics": {name: {"value", "standard_error", "count"}}, "signatures", "sentences": scores of each}. With
    one translation for each, sentences also have what they add to the corpus scores: `bleu_statistics` and
    `chrf_statistics`, for tests of the difference between two models.
    """
    texts = [[one_line(text) for text in of_pair] for of_pair in texts]
    fewest = min(map(len, texts))
    sentence = _sentence_scores(pairs, texts, scoring)
    metrics: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    adds: list[dict[str, list[int]]] = [{} for _ in pairs]  # to the corpus scores, of each sentence
    if max(map(len, texts)) == 1:
        for name in ("bleu", "chrf"):
            metrics[name], signatures[name], statistics = _corpus(name, [t[0] for t in texts], pairs, scoring)
            for of_pair, found_one in zip(adds, statistics, strict=True):
                of_pair[f"{name}_statistics"] = found_one
        for name, scores in sentence.items():
            metrics[name] = _mean([of_pair[0] for of_pair in scores])
    else:
        for k in (k for k in K if k <= fewest):
            for name in ("bleu", "chrf"):
                picked = _picked(texts, sentence[f"sentence_{name}"], k, fewest)
                found = [
                    _corpus(name, corpus, pairs, scoring, bootstrap=place == 0) for place, corpus in enumerate(picked)
                ]
                # The groups share the sentences, so their average errs like one of them, at most.
                value = math.fsum(entry["value"] for entry, *_ in found) / len(found)
                metrics[f"best_of_{k}_{name}"] = {**found[0][0], "value": value}
                signatures[name] = found[0][1]
            for name, scores in sentence.items():
                metrics[f"best_of_{k}_{name}"] = _mean([expected_best(of_pair, k) for of_pair in scores])
    rows = [
        {
            "task_id": pair.key,
            "sample": number,
            **{name: scores[place][number] for name, scores in sentence.items()},
            **adds[place],
        }
        for place, pair in enumerate(pairs)
        for number in range(len(texts[place]))
    ]
    return {"metrics": metrics, "signatures": signatures, "sentences": rows}


def _sentence_scores(
    pairs: Sequence[Pair], texts: Sequence[Sequence[str]], scoring: TranslationScoring
) -> dict[str, list[list[float]]]:
    bleu, chrf = _metric("bleu", scoring, sentence=True), _metric("chrf", scoring, sentence=True)
    found = {
        name: [
            [metric.sentence_score(t, p.references).score for t in of_pair]
            for p, of_pair in zip(pairs, texts, strict=True)
        ]
        for name, metric in (("sentence_bleu", bleu), ("sentence_chrf", chrf))
    }
    if scoring.comet_model is not None:
        triples = [(p.source, t, r) for p, of in zip(pairs, texts, strict=True) for t in of for r in p.references]
        scores = iter(comet_scores(triples, scoring.comet_model, scoring.comet_python))
        # COMET takes one reference: with several, a translation has the mean of its scores.
        found["comet"] = [
            [math.fsum(itertools.islice(scores, len(p.references))) / len(p.references) for _ in of]
            for p, of in zip(pairs, texts, strict=True)
        ]
    return found


def comet_scores(triples: Sequence[tuple[str, str, str]], model: str, python: str | None = None) -> list[float]:
    """A score for each (source, translation, reference), by a process of its own: unbabel-comet asks for older
    transformers and numpy than ebft does, so the interpreter of another environment can be named."""
    interpreter = python or sys.executable
    if shutil.which(interpreter) is None:
        raise ConfigError(f"--comet-python {interpreter}: no such program")
    with tempfile.TemporaryDirectory(prefix="ebft-comet-") as folder:
        task, result = Path(folder) / "task.json", Path(folder) / "scores.json"
        rows = [{"src": source, "mt": translation, "ref": reference} for source, translation, reference in triples]
        task.write_text(json.dumps({"model": model, "rows": rows}), encoding="utf-8")
        # Its progress goes to standard error, where ours is; only that is kept for the message if it fails.
        done = subprocess.run(
            [interpreter, str(COMET_WORKER), str(task), str(result)], stderr=subprocess.PIPE, text=True
        )
        if done.returncode == NOT_INSTALLED:
            raise ConfigError(
                f"COMET needs unbabel-comet, which {interpreter} does not have; make an environment for it (python -m "
                "venv comet && comet/bin/pip install unbabel-comet) and name it with --comet-python comet/bin/python"
            )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfigError(f"COMET with the model {model!r} failed: {reason}")
        return json.loads(result.read_text())


def _picked(texts: Sequence[Sequence[str]], scores: Sequence[Sequence[float]], k: int, fewest: int) -> list[list[str]]:
    """One corpus from each group of k samples, every sentence the best of its group by its own score."""
    return [
        [
            max(zip(s[start : start + k], t[start : start + k], strict=True), key=lambda pair: pair[0])[1]
            for t, s in zip(texts, scores, strict=True)
        ]
        for start in range(0, fewest - k + 1, k)
    ]


def _metric(name: str, scoring: TranslationScoring, sentence: bool = False) -> Any:
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        raise ConfigError("translation needs sacrebleu; install it with `pip install sacrebleu`") from None
    if name == "chrf":
        return CHRF()
    language = next((code for code, full in LANGUAGE_NAMES.items() if scoring.target_language in (code, full)), "")
    try:
        # effective_order: a short sentence without any 4-gram would otherwise score next to nothing.
        return BLEU(tokenize=scoring.bleu_tokenize, trg_lang=language, effective_order=sentence)
    except (KeyError, ImportError, RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"sacrebleu's tokenizer {scoring.bleu_tokenize or language!r} cannot be used: {error}"
        ) from None


def _corpus(
    name: str, texts: list[str], pairs: Sequence[Pair], scoring: TranslationScoring, bootstrap: bool = True
) -> tuple[dict[str, Any], str, list[list[int]]]:
    """The score of the `sacrebleu` command, its signature, and what each sentence adds to the sums that it is made of;
    the standard error is the bootstrap's."""
    most = max(len(pair.references) for pair in pairs)
    # One stream per reference; sentences with fewer have None in the others, which sacrebleu leaves out.
    streams = [[p.references[i] if i < len(p.references) else None for p in pairs] for i in range(most)]
    metric = _metric(name, scoring)
    value = float(metric.corpus_score(texts, streams).score)
    signature = str(metric.get_signature())
    # They have no public name, hence two private methods of sacrebleu's metrics, here and below.
    adds = [list(map(int, of_one)) for of_one in metric._extract_corpus_statistics(texts, streams)]
    error = None
    if bootstrap and scoring.bootstrap and len(pairs) > 1:
        error = _bootstrap_error(metric, adds, scoring.bootstrap)
    return {"value": value, "standard_error": error, "count": len(pairs)}, signature, adds


def _bootstrap_error(metric: Any, adds: list[list[int]], times: int) -> float:
    """The spread of the score over corpora drawn from this one with replacement, always the same draws.

    sacrebleu's own bootstrap gives half of a 95 % interval, holds all draws at once, and fails on scores of 0.
    """
    import numpy as np

    statistics = np.array(adds, dtype=np.float64)
    random = np.random.default_rng(12345)
    scores = []
    for _ in range(times):
        drawn = statistics[random.integers(len(statistics), size=len(statistics))].sum(0)
        scores.append(float(metric._compute_score_from_stats(drawn.tolist()).score))
    return float(np.std(scores, ddof=1))


def _mean(values: Sequence[float]) -> dict[str, Any]:
    mean = math.fsum(values) / len(values)
    error = None
    if len(values) > 1:
        error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return {"value": mean, "standard_error": error, "count": len(values)}
