"""`push_to_hub`: the final model with its card, uploaded when the run has ended.

The Trainer would upload its whole output folder after every checkpoint, with samples of the training text in it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ebft.errors import ConfigError, first_line

logger = logging.getLogger(__name__)


def take_over(args: Any) -> str | None:
    """The repository to upload to, made now so that a missing token is noticed before training; None if not asked."""
    if not args.push_to_hub:
        return None
    args.push_to_hub = False  # from here on it is ours
    if getattr(args.hub_strategy, "value", args.hub_strategy) not in ("end", "every_save"):
        raise ConfigError(
            f"hub_strategy={args.hub_strategy} is not supported: the final model is uploaded; leave it out"
        )
    if args.process_index:
        return args.hub_model_id
    from huggingface_hub import HfApi

    name = args.hub_model_id or Path(args.output_dir).resolve().name
    try:
        return HfApi().create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id
    except Exception as error:  # the library raises many kinds, for networks, tokens and names
        raise ConfigError(
            f"push_to_hub=true: {name} cannot be made on the hub: {first_line(error)}; log in with `hf auth login`, or "
            "leave push_to_hub out"
        ) from None


def upload(repository: str, folder: Path, revision: str | None) -> None:
    """A run that has ended well does not fail over its upload."""
    from huggingface_hub import HfApi

    try:
        place = HfApi().upload_folder(repo_id=repository, folder_path=folder, revision=revision)
    except Exception as error:
        logger.warning(f"not uploaded: {first_line(error)}; again by hand: hf upload {repository} {folder}")
    else:
        logger.info(f"uploaded: {getattr(place, 'commit_url', repository)}")
