"""The settings of a recipe that decide how much memory it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebft.config.recipe import Recipe


@dataclass(frozen=True)
class Workload:
    """The fields are what `ebft plan --json` shows as `settings`."""

    micro_batch: int  # sequences in one pass with gradients
    rows: int  # sequences rolled out at once
    context: int
    anchors: int  # of a sequence
    samples: int
    horizon: int
    eval_rows: int = 0  # sequences in a batch of evaluation; 0: nothing to evaluate on
    eval_samples: int = 0
    bf16: bool = True
    trained_bytes: int = 4  # of a trained weight: model_dtype
    truth: bool = True  # the loss has next-token cross-entropy, which needs the logits of every token
    checkpointing: bool = False
    optimizer: str = "adamw_torch_fused"
    divergence: bool = False  # a KL term, and so a reference model
    own_features: bool = False  # a copy for the feature network even with an adapter
    other_features: int | None = None  # parameters of another feature network
    average_features: bool = False
    adapter: int = 0  # parameters of the adapter, for lora and qlora
    rebuilt: int = 0  # weights of experts that the adapter changes: built anew in every pass, all of a layer at once
    gpus: int = 1
    device: str = "cuda"

    @classmethod
    def of(cls, recipe: Recipe, gpus: int = 1, anchors: int | None = None, device: str = "cuda") -> Workload:
        """From a recipe. Without `anchors`, as many as fit in a sequence."""
        from transformers.training_args import OptimizerNames

        t = recipe.training
        if anchors is None:
            anchors = 1 if t.anchors == "answer_start" else (t.context_length - t.horizon) // t.stride
        validates = recipe.data.validation_dataset is not None or recipe.data.validation_split > 0
        window = t.per_device_train_batch_size * t.gradient_accumulation_steps
        return cls(
            micro_batch=t.per_device_train_batch_size,
            rows=t.rollout_batch_size or window,
            context=t.context_length,
            anchors=anchors,
            samples=t.samples,
            horizon=t.horizon,
            # Whatever eval_strategy is: a run with validation data evaluates before and after training.
            eval_rows=t.per_device_eval_batch_size if validates else 0,
            eval_samples=t.eval_samples or t.samples,
            bf16=bool(t.bf16 or (t.bf16_if_fast and device == "cuda")),
            trained_bytes={"float32": 4, "bfloat16": 2, "float16": 2}[recipe.model.model_dtype],
            truth=t.gamma != 0,
            checkpointing=t.gradient_checkpointing,
            optimizer=OptimizerNames(t.optim).value,
            divergence=t.kl_weight != 0,
            own_features=t.feature_source in ("copy", "random", "average"),
            average_features=t.feature_source == "average",
            gpus=gpus,
            device=device,
        )

    @property
    def evaluation(self) -> Workload:
        """Rollouts and features as evaluation computes them."""
        return replace(self, rows=self.eval_rows, samples=self.eval_samples)

    @property
    def packed(self) -> int:
        """Tokens of one packed sequence: the context, and every completion."""
        return self.context + self.anchors * self.samples * self.horizon

    @property
    def loss_rows(self) -> int:
        """Rows of one packed sequence whose logits the loss needs."""
        truth = self.context - 1 if self.truth else 0
        return self.anchors * (1 + self.samples * (self.horizon - 1)) + truth

    @property
    def compute_bytes(self) -> int:
        """Bytes of a weight or activation in a computation."""
        return 2 if self.bf16 else self.trained_bytes

    @property
    def feature_bytes(self) -> int:
        """Bytes of a weight of the feature network; a moving average needs float32."""
        return 4 if self.average_features else self.compute_bytes
