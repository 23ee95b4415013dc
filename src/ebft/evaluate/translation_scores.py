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

import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from ebft.errors import ConfigError
from ebft.evaluate.scoring import K, mean_of
from ebft.problems.translation import LANGUAGE_NAMES, Pair, one_line

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
    scores = _sentence_scores(pairs, texts, scoring)
    metrics: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    rows = [
        {"task_id": pair.key, "sample": number, **{name: of[place][number] for name, of in scores.items()}}
        for place, pair in enumerate(pairs)
        for number in range(len(texts[place]))
    ]
    if max(map(len, texts)) == 1:
        for name in ("bleu", "chrf"):
            metrics[name], signatures[name], adds = _corpus(name, [text for [text] in texts], pairs, scoring)
            for row, statistics in zip(rows, adds, strict=True):
                row[f"{name}_statistics"] = statistics
        metrics |= {name: mean_of([score for [score] in of]) for name, of in scores.items()}
        return {"metrics": metrics, "signatures": signatures, "sentences": rows}
    for k in (k for k in K if k <= fewest):
        for name in ("bleu", "chrf"):
            both = list(zip(scores[f"sentence_{name}"], texts, strict=True))
            corpora = [
                [max(zip(s[at : at + k], t[at : at + k], strict=True), key=lambda pair: pair[0])[1] for s, t in both]
                for at in range(0, fewest - k + 1, k)
            ]
            found = [_corpus(name, corpus, pairs, scoring, place == 0) for place, corpus in enumerate(corpora)]
            # The groups share the sentences, so their average errs like one of them, at most.
            metrics[f"best_of_{k}_{name}"] = found[0][0] | {"value": fmean(entry["value"] for entry, *_ in found)}
            signatures[name] = found[0][1]
        for name, of in scores.items():
            metrics[f"best_of_{k}_{name}"] = mean_of([expected_best(of_pair, k) for of_pair in of])
    return {"metrics": metrics, "signatures": signatures, "sentences": rows}


def _sentence_scores(
    pairs: Sequence[Pair], texts: Sequence[Sequence[str]], scoring: TranslationScoring
) -> dict[str, list[list[float]]]:
    found = {}
    for name in ("bleu", "chrf"):
        score = _metric(name, scoring, sentence=True).sentence_score
        of_pairs = zip(pairs, texts, strict=True)
        found[f"sentence_{name}"] = [[score(text, pair.references).score for text in of] for pair, of in of_pairs]
    if scoring.comet_model is not None:
        triples = [(p.source, t, r) for p, of in zip(pairs, texts, strict=True) for t in of for r in p.references]
        scores = iter(comet_scores(triples, scoring.comet_model, scoring.comet_python))
        # COMET takes one reference: with several, a translation has the mean of its scores.
        found["comet"] = [
            [fmean(islice(scores, len(p.references))) for _ in of] for p, of in zip(pairs, texts, strict=True)
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
        done = subprocess.run([interpreter, COMET_WORKER, task, result], stderr=subprocess.PIPE, text=True)
        if done.returncode == NOT_INSTALLED:
            raise ConfigError(
                f"COMET needs unbabel-comet, which {interpreter} does not have; make an environment for it (python -m "
                "venv comet && comet/bin/pip install unbabel-comet) and name it with --comet-python comet/bin/python"
            )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfigError(f"COMET with the model {model!r} failed: {reason}")
        return json.loads(result.read_text())


def _metric(name: str, scoring: TranslationScoring, sentence: bool = False) -> Any:
    from sacrebleu.metrics import BLEU, CHRF

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
    draws = (statistics[random.integers(len(adds), size=len(adds))].sum(0).tolist() for _ in range(times))
    return float(np.std([metric._compute_score_from_stats(drawn).score for drawn in draws], ddof=1))
