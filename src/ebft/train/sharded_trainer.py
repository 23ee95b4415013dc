"""How a trainer keeps, saves and loads its model when every process has a part of it (`runtime.sharding`).

A checkpoint holds everybody's shards, and can be read by any number of processes. A model that is saved for others is
an ordinary one, put together by the first process. Without `fsdp` all of this is transformers' own.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.trainer import SCHEDULER_NAME

from ebft.runtime import processes, sharding
from ebft.train.measured import Measured
from ebft.train.run_folder import check_kind


class ShardedTrainer(Measured):
    """A Trainer whose model may be sharded: `sharded` says whether it is."""

    lr_scheduler: Any
    sharded = False

    def keep_unwrapped(self) -> None:
        """Have accelerate leave the model alone: it sees plain data parallelism, and ebft adds gradients up itself."""
        if self.sharded:  # on its device already, and wants neither a wrapper nor autocast
            self.accelerator.prepare_model = lambda model, *args, **kwargs: model
            self.accelerator.clip_grad_norm_ = sharding.clip_gradients
        elif self.args.world_size > 1:
            # No wrapper: `runtime.processes` says why. accelerate still puts the model on its device.
            self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
            processes.copy_from_first(self.model)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """An ordinary model, put together by the first process; in a checkpoint, everybody's shards."""
        if not self.sharded:
            return super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or str(self.args.output_dir))
        sharding.release(self.model)
        if hasattr(self.model, "disable_adapter") or not _internal_call:
            weights = sharding.gathered(self.model)
            if self.args.should_save:
                self._save(str(folder), state_dict=weights)
        elif self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            for part in (self.model.config, self.model.generation_config, self.processing_class):
                if part is not None:
                    part.save_pretrained(folder)
        if _internal_call:
            sharding.save(folder / sharding.MODEL, sharding.weights(self.model))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.sharded:
            return super()._save_optimizer_and_scheduler(output_dir)
        sharding.save(Path(output_dir) / sharding.OPTIMIZER, sharding.optimizer_state(self.model, self.optimizer))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        check_kind(Path(resume_from_checkpoint), self.sharded)
        if not self.sharded:
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        sharding.release(self.model)
        sharding.load(Path(resume_from_checkpoint) / sharding.MODEL, sharding.weights(self.model))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self.sharded or checkpoint is None:
            return super()._load_optimizer_and_scheduler(checkpoint)
        folder = Path(checkpoint)
        if (folder / sharding.OPTIMIZER).is_dir():  # not there with save_only_model
            state = sharding.optimizer_state(self.model, self.optimizer)
            sharding.load(folder / sharding.OPTIMIZER, state)
            sharding.set_optimizer_state(self.model, self.optimizer, state)
            self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))

    def _load_best_model(self) -> None:
        if not self.sharded:
            return super()._load_best_model()
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))
