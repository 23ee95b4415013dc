"""`ebft export`: a run, a checkpoint or an adapter as an ordinary model folder that `from_pretrained` loads.

An adapter is merged into its base model, in float32: at small learning rates what it adds is less than what rounding to
bf16 takes away, so `--dtype bfloat16` is a choice and not the default.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebft import loading
from ebft.config.settings import Parser
from ebft.errors import ConfigError
from ebft.loading import DTYPES, Checkpoint
from ebft.runtime.files import read_json, share_weights
from ebft.runtime.messages import quiet_libraries
from ebft.train import report, run_folder

logger = logging.getLogger(__name__)


def export(source: str, output: str, dtype: str = "float32", trust_remote_code: bool = False) -> Path:
    """Write the model of `source` and its tokenizer to the folder `output`."""
    folder = Path(output).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--output {folder} is there already and not empty; choose another folder")
    found = Checkpoint.find(source)
    tokenizer = found.load_tokenizer(trust_remote_code)
    logger.info(f"loading {found.adapter or found.base}")
    model = _load(found, trust_remote_code).to(DTYPES[dtype])
    logger.info(f"writing {folder}")
    with run_folder.whole(folder) as partial:
        model.save_pretrained(partial)
        share_weights(partial)
        tokenizer.save_pretrained(partial)
        _write_card(Path(found.adapter or found.base), partial, source, folder.name)
    return folder


def _write_card(model: Path, folder: Path, source: str, title: str) -> None:
    """The card of the run that made the model; that of a checkpoint or of a model from elsewhere says what is known."""
    recipe, header = model.parent / "recipe.yaml", "library_name: transformers"
    if model.name == "final" and (model / "README.md").is_file():
        text = (model / "README.md").read_text(encoding="utf-8").replace("library_name: peft", header)
        if (model / report.CURVES).is_file():
            shutil.copy(model / report.CURVES, folder)
    else:
        settings = recipe.read_text(encoding="utf-8") if recipe.is_file() else ""
        text = report.card(title, f"Exported from `{source}`.", settings, [header])
    (folder / "README.md").write_text(text, encoding="utf-8")


def _load(found: Checkpoint, trust_remote_code: bool) -> Any:
    settings = (read_json(Path(found.adapter).resolve().parent / "resolved.json") or {}) if found.adapter else {}
    if settings.get("load_in_4bit"):
        # Made from the same numbers as in training; on the CPU, which has room for all of it in float32. The adapter
        # has learnt to correct the 4-bit weights, so it is these that it is merged into, as they are.
        dtype = torch.bfloat16 if settings.get("bf16") else torch.float32
        four_bit = loading.four_bit(torch.device("cpu"))
        model = loading.load_pretrained(found.base, dtype, trust_remote_code, **four_bit)
        model = model.dequantize(torch.float32).float()
    else:
        model = loading.load_pretrained(found.base, torch.float32, trust_remote_code)
    if found.adapter is None:
        return model
    logger.info(f"merging the adapter into {found.base}")
    adapted = found.with_adapter(model).eval()
    expected = _probe(adapted)
    merged = adapted.merge_and_unload(safe_merge=True)
    difference = float((_probe(merged) - expected).norm() / expected.norm())
    if not difference < 1e-3:
        raise ConfigError(f"merging {found.adapter} would change its logits (by {difference:.1%}); use it as it is")
    return merged


@torch.no_grad()
def _probe(model: Any) -> Tensor:
    """Logits of a few tokens: some adapters cannot be merged exactly, and not all of them say so."""
    ids = torch.arange(8, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    return model(input_ids=ids, use_cache=False).logits


def command(arguments: list[str]) -> int:
    parser = Parser("export", "An ordinary model folder, with an adapter merged into its base.")
    parser.add_argument("source", metavar="RUN_OR_CHECKPOINT", help="output folder of a run, checkpoint or adapter")
    parser.add_argument("--output", required=True, help="folder to write; must not be there yet")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of the weights [float32]")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    options = parser.parse_args(arguments)
    quiet_libraries()
    print(export(options.source, options.output, options.dtype, options.trust_remote_code))
    return 0
