"""Scores of translations: BLEU and chrF by sacrebleu, COMET by unbabel-comet; best of k.

Of one translation per sentence: corpus scores, exactly as the `sacrebleu` command, and means over sentences. Of n
samples, for each k:

- `best_of_k_sentence_bleu` (and chrf, comet): for each sentence the expected maximum of the metric over k of the n
  samples drawn without replacement, averaged over sentences: sum_i s_(i) C(i-1, k-1) / C(n, k) over the sorted scores,
  unbiased for k fresh samples as pass@k is;
- `best_of_k_bleu` (and chrf): corpus scores of the sentences picked by their own sentence score. The samples are split
  into floor(n/k) groups of k in the order they were made, one corpus is picked from each, and the scores averaged.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from ebft.errors import ConfigError
from ebft.evaluate.scoring import K, Metric, Metrics, Results, mean_of
from ebft.problems.translation import LANGUAGE_NAMES, Pair, one_line

COMET_WORKER = Path(__file__).with_name("comet_worker.py")
CORPUS = ("bleu", "chrf")
BOOTSTRAP = 1000  # resamples for the standard errors of corpus scores
Scores = dict[str, list[list[float]]]  # by metric, of every translation of every sentence


@dataclass(frozen=True)
class TranslationScoring:
    target_language: str = ""  # a name or a code: sacrebleu has tokenizers of their own for zh, ja and ko
    bleu_tokenize: str | None = None  # sacrebleu's tokenizer, if not the one it has for the language
    comet_model: str | None = None  # name or path of a COMET model; None: no COMET
    comet_python: str | None = None  # interpreter of an environment that has unbabel-comet, if not this one


def expected_best(scores: Sequence[float], k: int) -> float:
    """The expected maximum of k of the scores, drawn without replacement."""
    every = math.comb(len(scores), k)
    return math.fsum(s * (math.comb(i, k - 1) / every) for i, s in enumerate(sorted(scores)))


def score_translations(
    pairs: Sequence[Pair], texts: Sequence[Sequence[str]], scoring: TranslationScoring, ks: Sequence[int] = K
) -> Results:
    """{"metrics", "signatures", "sentences": scores of each}. One translation for each: `bleu` and so on; several:
    `best_of_k_...`. Of one, sentences also have what they add to the corpus scores, for tests of differences."""
    texts = [[one_line(text) for text in of_pair] for of_pair in texts]
    scores, corpora = _sentence_scores(pairs, texts, scoring), {name: _metric(name, scoring) for name in CORPUS}
    rows = [
        {"task_id": pair.key, "sample": number, **{name: of[place][number] for name, of in scores.items()}}
        for place, pair in enumerate(pairs)
        for number in range(len(texts[place]))
    ]
    metrics: Metrics = {}
    if max(map(len, texts)) == 1:
        for name, corpus in corpora.items():
            metrics[name], adds = _corpus_score(corpus, pairs, [text for [text] in texts])
            for row, statistics in zip(rows, adds, strict=True):
                row[f"{name}_statistics"] = statistics
        metrics |= {name: mean_of([score for [score] in of]) for name, of in scores.items()}
    else:
        fewest = min(map(len, texts))
        for k in (k for k in ks if k <= fewest):
            for name, corpus in corpora.items():
                found = []
                for at in range(0, fewest - k + 1, k):  # of every sentence the best of these k, of equal ones the first
                    best = [max(range(at, at + k), key=of.__getitem__) for of in scores[f"sentence_{name}"]]
                    picked = [of_pair[number] for of_pair, number in zip(texts, best, strict=True)]
                    found.append(_corpus_score(corpus, pairs, picked)[0])
                # The groups share the sentences, so their average errs like one of them, at most.
                metrics[f"best_of_{k}_{name}"] = found[0] | {"value": fmean(entry["value"] for entry in found)}
            for name, of in scores.items():
                metrics[f"best_of_{k}_{name}"] = mean_of([expected_best(of_pair, k) for of_pair in of])
    signatures = {name: str(corpus.get_signature()) for name, corpus in corpora.items()}
    return {"metrics": metrics, "signatures": signatures, "sentences": rows}


def _sentence_scores(pairs: Sequence[Pair], texts: Sequence[Sequence[str]], scoring: TranslationScoring) -> Scores:
    both = list(zip(pairs, texts, strict=True))
    found: Scores = {}
    for name in CORPUS:
        score = _metric(name, scoring, sentence=True).sentence_score
        found[f"sentence_{name}"] = [[score(text, pair.references).score for text in of] for pair, of in both]
    if scoring.comet_model is not None:
        triples = [(pair.source, text, reference) for pair, of in both for text in of for reference in pair.references]
        scores = iter(comet_scores(triples, scoring.comet_model, scoring.comet_python))
        # COMET takes one reference: with several, a translation has the mean of its scores.
        found["comet"] = [[fmean(islice(scores, len(pair.references))) for _ in of] for pair, of in both]
    return found


def comet_scores(triples: Sequence[tuple[str, str, str]], model: str, python: str | None = None) -> list[float]:
    """A score for each (source, translation, reference), by an interpreter of an environment of its own: unbabel-comet
    asks for older transformers and numpy than ebft does."""
    with tempfile.TemporaryDirectory(prefix="ebft-comet-") as folder:
        task, result = Path(folder) / "task.json", Path(folder) / "scores.json"
        rows = [{"src": source, "mt": text, "ref": reference} for source, text, reference in triples]
        task.write_text(json.dumps({"model": model, "rows": rows}), encoding="utf-8")
        done = subprocess.run([python or sys.executable, COMET_WORKER, task, result], stderr=subprocess.PIPE, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            how = "python -m venv comet && comet/bin/pip install unbabel-comet"
            needs = f"an environment with unbabel-comet ({how}), named with --comet-python comet/bin/python"
            raise ConfigError(f"COMET with the model {model!r} failed: {reason}; it needs {needs}")
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
        raise ConfigError(f"sacrebleu's tokenizer {scoring.bleu_tokenize or language!r}: {error}") from None


def _corpus_score(metric: Any, pairs: Sequence[Pair], texts: list[str]) -> tuple[Metric, list[list[int]]]:
    """That of the `sacrebleu` command, and what each sentence adds to the sums that it is made of. The standard error
    is the spread over corpora drawn from this one with replacement, always the same draws (sacrebleu's own gives half
    of a 95 % interval, and fails on scores of 0). Two private methods are used: they have no public name."""
    import numpy as np

    # One stream per reference; sentences with fewer have None in the others, which sacrebleu leaves out.
    streams = [list(stream) for stream in zip_longest(*(pair.references for pair in pairs))]
    value = float(metric.corpus_score(texts, streams).score)
    adds = [list(map(int, of_one)) for of_one in metric._extract_corpus_statistics(texts, streams)]
    statistics, random, error = np.array(adds, dtype=np.float64), np.random.default_rng(12345), None
    if len(adds) > 1:
        draws = (statistics[random.integers(len(adds), size=len(adds))].sum(0).tolist() for _ in range(BOOTSTRAP))
        error = float(np.std([metric._compute_score_from_stats(drawn).score for drawn in draws], ddof=1))
    return {"value": value, "standard_error": error, "count": len(texts)}, adds
