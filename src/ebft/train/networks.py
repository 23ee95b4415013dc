"""The networks of a run: the weights that compute, the frozen feature network, and the KL term's reference model.

All are made from the model as it is at the start. With bf16, full fine-tuning computes on a bf16 copy of the float32
weights (`model.working_copy`). With `fsdp` every process keeps a part of each network (`runtime.sharding`), and shards
are gathered in bf16.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError
from ebft.loading import feature_network
from ebft.model import backbone
from ebft.model.backbone import base_model, compile_layers, decoder_layers, decoder_of
from ebft.model.working_copy import WorkingCopy, copy_in_dtype
from ebft.runtime import processes, sharding
from ebft.train.costs import FlopCounter


class Networks:
    def __init__(self, model: Any, args: EBFTConfig, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.model, self.args = model, args
        self.adapted = hasattr(model, "disable_adapter")
        self.sharded = args.sharding is not None
        if any(parameter.dtype == torch.float16 for parameter in model.parameters()):
            raise ConfigError(
                "the model's weights are in float16, in which the small gradients of a mean over all tokens of a step "
                "are lost; load it in float32 or bfloat16"
            )
        if self.sharded:
            _check_shardable(model, args.device)
        check = backbone.check_training_pass if args.disable_dropout else backbone.prepare_model
        processes.all_or_none(lambda: check(model))  # of a sharded model, not all may have the weights to look at
        backbone.check_tokens(decoder_of(model), args.context_length)
        self.working = self._working_copy()
        self.features = feature_network(model, args, tokenizer)
        self.flops = FlopCounter(model)
        # The frozen q of the KL term; with an adapter, it is the base model and nothing is copied.
        self.reference: Any = None
        if args.kl_weight and not self.adapted:
            copied, _ = copy_in_dtype(model, torch.bfloat16 if args.bf16 else None)
            self.reference = copied.requires_grad_(False).eval()
        if self.sharded:
            self._shard()  # last: shards are not copied

    def _working_copy(self) -> WorkingCopy | None:
        args, model = self.args, self.model
        if args.bf16 and self.adapted:
            # Under an adapter the base model does not train: it needs no float32 weights. Adapters are small: autocast.
            for parameter in model.parameters():
                if not parameter.requires_grad and parameter.is_floating_point():  # 4 bits stay 4 bits
                    parameter.data = parameter.data.to(torch.bfloat16)
        if not args.bf16 or self.adapted or self.sharded or next(model.parameters()).dtype == torch.bfloat16:
            return None
        working = WorkingCopy(model)
        if args.gradient_checkpointing:
            working.model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
        return working

    def _shard(self) -> None:
        """Each process keeps its part of the model and of the frozen networks."""
        assert self.args.sharding is not None
        base, frozen, device = base_model(self.model), self.features.decoder, self.args.device

        def shard(model: Any, dtype: torch.dtype | None, reshard: bool) -> None:
            decoder = decoder_of(model)
            sharding.shard_model(model, decoder, decoder_layers(decoder)[1], device, dtype, reshard)

        in_bf16 = torch.bfloat16 if self.args.bf16 and not self.adapted else None
        shard(base, in_bf16, self.args.sharding.reshard_after_forward)
        if self.features.source == "adapter_off":
            sharding.call_through(frozen, base)
        else:
            sharding.shard_decoder(frozen, decoder_layers(frozen)[1], device)
        if self.reference is not None:
            shard(self.reference, None, reshard=True)

    def compile(self) -> None:
        """Compile the layers of what computes, on a GPU or where the settings ask for it, and bring weights into the
        form that is fastest there."""
        args = self.args
        if args.device.type == "cpu" and not self.sharded:
            self.features.turn_weights()
        on_its_own = args.torch_compile or args.device.type == "cuda"
        if on_its_own if args.compile_layers is None else args.compile_layers:
            compile_layers(decoder_of(self.model if self.working is None else self.working.model))
            self.features.compile_layers()
            if self.reference is not None:
                compile_layers(decoder_of(self.reference))

    def compute_model(self) -> Any:
        """The model to compute with, up to date with the one that is trained."""
        if self.working is None:
            return self.model
        self.working.refresh()
        return self.working.model

    def training_model(self, model: nn.Module) -> nn.Module:
        """What a gradient is taken through, in the mode of `model`."""
        return model if self.working is None else self.working.model.train(model.training)

    @property
    def computes_in_bf16(self) -> bool:
        """Whether the weights that compute are in bf16 as a whole: autocast would only lift parts to float32."""
        return self.working is not None or (self.sharded and not self.adapted)

    def frozen_reference(self) -> tuple[Any, AbstractContextManager[Any]]:
        """The frozen model q, and a context to run it in."""
        if self.reference is not None:
            return self.reference, nullcontext()
        return self.model, self.model.disable_adapter()


def _check_shardable(model: Any, device: torch.device) -> None:
    if getattr(model, "is_quantized", False):
        raise ConfigError("fsdp with a quantised model is not supported; load it in float32 or bfloat16")
    processes.join_alone(device)
    if not processes.same_on_all([(name, p.shape, p.dtype) for name, p in model.named_parameters()]):
        raise ConfigError("the processes have loaded different models, which cannot be sharded; load the same one")


def disable_dropout(model: nn.Module) -> None:
    """Set dropout to 0 in modules that are dropout, and in those that keep its rate for a function that they call
    (`dropout`, `attention_dropout`, `layerdrop`, `resid_pdrop`, ...). `check_training_pass` finds what is left."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
