"""The paper's own numbers, its table of best results per method: copied from there, not measured here."""

from __future__ import annotations

from ebft.studies.report.tables import Cell, Column, Table, cell

_CODE = ("CE", "FM", "greedy", "pass@1", "pass@4", "pass@16")
_SCORES = ("greedy", "best-of-1", "best-of-4", "best-of-16")
_COLUMNS = {
    "qa_code": _CODE,
    "unstructured_code": _CODE,
    "translation": ("CE", "FM", *(f"COMET {name}" for name in _SCORES), *(f"BLEU {name}" for name in _SCORES)),
}
_TITLES = {"qa_code": "Q&A coding", "unstructured_code": "unstructured coding", "translation": "translation"}
_ROWS: dict[str, list[tuple[str | float, ...]]] = {
    "qa_code": [
        ("Base", 0.338, 0.361, 0.484, 0.424, 0.606, 0.715),
        ("Warm start", 0.301, 0.344, 0.483, 0.440, 0.611, 0.723),
        ("SFT", 0.289, 0.315, 0.483, 0.455, 0.617, 0.728),
        ("EBFT", 0.207, 0.258, 0.548, 0.510, 0.659, 0.771),
        ("EBFT (ws.)", 0.190, 0.255, 0.534, 0.508, 0.658, 0.756),
        ("RLVR", 0.774, 0.442, 0.535, 0.510, 0.660, 0.752),
        ("RLVR (ws.)", 0.389, 0.402, 0.524, 0.529, 0.662, 0.749),
    ],
    "unstructured_code": [
        ("Base", 0.631, 0.369, 0.473, 0.419, 0.596, 0.702),
        ("Warm start", 0.499, 0.317, 0.508, 0.458, 0.638, 0.743),
        ("SFT", 0.501, 0.321, 0.504, 0.467, 0.644, 0.747),
        ("EBFT", 0.499, 0.320, 0.548, 0.524, 0.664, 0.769),
        ("EBFT (ws.)", 0.481, 0.312, 0.536, 0.514, 0.659, 0.769),
    ],
    "translation": [
        ("Base", 1.870, 0.637, 0.644, 0.611, 0.701, 0.745, 0.074, 0.124, 0.186, 0.231),
        ("Warm start", 2.647, 0.695, 0.711, 0.691, 0.759, 0.793, 0.158, 0.169, 0.233, 0.279),
        ("SFT", 1.782, 0.690, 0.717, 0.696, 0.761, 0.795, 0.160, 0.172, 0.235, 0.280),
        ("EBFT", 1.670, 0.578, 0.725, 0.713, 0.765, 0.795, 0.182, 0.194, 0.244, 0.283),
        ("EBFT (ws.)", 1.671, 0.580, 0.734, 0.724, 0.772, 0.800, 0.185, 0.197, 0.247, 0.286),
        ("RLVR", 2.454, 0.641, 0.697, 0.691, 0.735, 0.761, 0.176, 0.194, 0.226, 0.248),
        ("RLVR (ws.)", 2.311, 0.718, 0.724, 0.718, 0.759, 0.781, 0.195, 0.210, 0.245, 0.269),
    ],
}


def paper_tables(task: str | None) -> list[Table]:
    """Of one of the paper's tasks, or of all three."""
    return [_table(name) for name in ([task] if task else _ROWS)]


def _table(task: str) -> Table:
    columns = [Column("method", text=True), *(Column(name) for name in _COLUMNS[task])]
    rows = [
        [cell(str(name)), *(Cell(f"{value:.3f}", value=float(value)) for value in values)]
        for name, *values in _ROWS[task]
    ]
    caption = (
        "Copied from the paper, not measured here: best results per method, on its models, data and benchmarks (means "
        "over them). CE and FM: cross-entropy and feature-matching loss on its validation data; ws.: after a warm "
        "start."
    )
    return Table(f"paper-{task.replace('_', '-')}", f"The paper's own numbers: {_TITLES[task]}", columns, rows, caption)
