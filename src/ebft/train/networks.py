"""The networks of a run: the weights that compute, the frozen feature network, the KL term's reference model, and what
a pass of them costs.

All are made from the model as it is at the start. With bf16, full fine-tuning computes on a bf16 copy of the float32
weights. With `fsdp` every process keeps a part of each network (`runtime.sharding`), and shards are gathered in bf16.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from ebft.config.training import EBFTConfig
from ebft.errors import ConfigError
from ebft.loading import feature_network
from ebft.model import backbone
from ebft.model.backbone import base_model, compile_layers, decoder_layers, decoder_of, idle_parameters, text_config
from ebft.model.features import FeatureNetwork
from ebft.runtime import processes, sharding
from ebft.train.sequences import warn

AVERAGE_FILE = "feature_average.safetensors"  # in a checkpoint


class Networks:
    def __init__(self, model: Any, args: EBFTConfig, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.model, self.args, quantized = model, args, getattr(model, "is_quantized", False)
        self.adapted, self.sharded = hasattr(model, "disable_adapter"), args.sharding is not None
        if any(parameter.dtype == torch.float16 for parameter in model.parameters()):
            raise ConfigError("weights in float16 lose small gradients; load the model in float32 or bfloat16")
        if self.sharded and quantized:
            raise ConfigError("fsdp with a quantised model is not supported; load it in float32 or bfloat16")
        if self.sharded:
            processes.join_alone(args.device)
        else:  # on its device before anything is copied from it
            if not quantized:  # which is where it was loaded to
                model.to(args.device)
            processes.copy_from_first(model)
        check = backbone.check_training_pass if args.disable_dropout else backbone.prepare_model
        processes.all_or_none(lambda: check(model))  # of a sharded model, not all may have the weights to look at
        backbone.check_tokens(decoder_of(model), args.context_length)
        if next((p.dtype for p in model.parameters() if p.requires_grad), None) == torch.bfloat16:
            warn("weights in bfloat16 do not move at small learning rates; load them with dtype=torch.float32")
        if args.bf16 and self.adapted:
            # Under an adapter the base model does not train: it needs no float32 weights. Adapters are small: autocast.
            for parameter in model.parameters():
                if not parameter.requires_grad and parameter.is_floating_point():  # 4 bits stay 4 bits
                    parameter.data = parameter.data.to(torch.bfloat16)
        self.working: backbone.WorkingCopy | None = None
        if args.bf16 and not self.adapted and not self.sharded and next(model.parameters()).dtype != torch.bfloat16:
            self.working = backbone.WorkingCopy(model)
            if args.gradient_checkpointing:
                self.working.model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
        # The weights that compute are in bf16 as a whole: autocast would only lift parts to float32.
        self.computes_in_bf16 = self.working is not None or (self.sharded and not self.adapted)
        self.features = feature_network(model, args, tokenizer)
        self.flops = FlopCounter(model)
        # The frozen q of the KL term; with an adapter, it is the base model and nothing is copied.
        self.reference: Any = None
        if args.kl_weight and not self.adapted:
            copied, _ = backbone.copy_in_dtype(model, torch.bfloat16 if args.bf16 else None)
            self.reference = copied.requires_grad_(False).eval()
        if self.sharded:
            self._shard()  # after the copies: shards are not copied
        on_its_own = args.torch_compile or args.device.type == "cuda"
        if on_its_own if args.compile_layers is None else args.compile_layers:
            of_reference = [] if self.reference is None else [decoder_of(self.reference)]
            computes = decoder_of(model if self.working is None else self.working.model)
            for decoder in (computes, self.features.decoder, *of_reference):
                compile_layers(decoder)

    def _shard(self) -> None:
        """Each process keeps its part of the model and of the frozen networks."""
        base, frozen, device = base_model(self.model), self.features.decoder, self.args.device

        def shard(model: Any, dtype: torch.dtype | None, reshard: bool) -> None:
            decoder = decoder_of(model)
            sharding.shard_model(model, decoder, decoder_layers(decoder)[1], device, dtype, reshard)

        in_bf16 = torch.bfloat16 if self.args.bf16 and not self.adapted else None
        shard(base, in_bf16, self.args.sharding == "full_shard")
        if self.features.source == "adapter_off":
            sharding.call_through(frozen, base)
        else:
            sharding.shard(frozen, decoder_layers(frozen)[1], device, None, reshard=True, reshard_root=True)
        if self.reference is not None:
            shard(self.reference, None, reshard=True)

    def save_average(self, checkpoint: Path) -> None:
        state = self.features.network.state_dict() if self.features.source == "average" else None
        if state is not None and self.sharded:
            sharding.save(checkpoint / sharding.AVERAGE, state)
        elif state is not None and self.args.should_save:
            save_file(state, checkpoint / AVERAGE_FILE)

    def load_average(self, checkpoint: Path) -> None:
        if self.features.source == "average" and self.sharded:
            sharding.load(checkpoint / sharding.AVERAGE, self.features.network.state_dict())
        elif self.features.source == "average":
            self.features.network.load_state_dict(load_file(checkpoint / AVERAGE_FILE))

    def compute_model(self) -> Any:
        """The model to compute with, up to date with the one that is trained."""
        if self.working is None:
            return self.model
        self.working.refresh()
        return self.working.model

    def frozen_reference(self) -> tuple[Any, AbstractContextManager[Any]]:
        """The frozen model q, and a context to run it in."""
        if self.reference is not None:
            return self.reference, nullcontext()
        return self.model, self.model.disable_adapter()


def disable_dropout(model: nn.Module) -> None:
    """Set dropout to 0 in modules that are dropout, and in those that keep its rate for a function that they call
    (`dropout`, `attention_dropout`, `layerdrop`, `resid_pdrop`, ...). `check_training_pass` finds what is left."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


class FlopCounter:
    """FLOPs of a pass over one token: 2 for every parameter that is multiplied with, by the usual count. Of a mixture
    of experts, those that a token goes to.

    `body` is the decoder's part, `head` that of one row of logits: EBFT and GRPO need logits for some tokens only.
    Not counted: padding, attention's products between tokens, the optimiser, evaluation, and what gradient
    checkpointing computes again.
    """

    def __init__(self, model: nn.Module) -> None:
        base = base_model(model)
        layers = decoder_layers(decoder_of(base))[1]
        idle = idle_parameters(layers, text_config(base))
        embeddings, head = backbone.input_embeddings(base), base.get_output_embeddings()
        # Looking up an embedding multiplies nothing; a head that shares the matrix does.
        looked_up = 0 if getattr(head, "weight", None) is embeddings else embeddings.numel()
        self.head = 2.0 * sum(p.numel() for p in head.parameters())
        self.body = 2.0 * (_count(model) - idle - looked_up) - self.head
        # Backward costs as much for the inputs and once more for the weights; a frozen base has no second part.
        frozen = any(not p.requires_grad for n, p in model.named_parameters() if "lora_" not in n)
        self.update = 2.0 if frozen else 3.0  # in forward passes

    def over(self, tokens: float, logits: float) -> float:
        """FLOPs of a forward pass over so many tokens, with so many rows of logits."""
        return tokens * self.body + logits * self.head

    def of_features(self, network: FeatureNetwork) -> float:
        """FLOPs of the frozen network for one token."""
        layers = decoder_layers(network.decoder)[1][: max(network.taps)]
        return 2.0 * (_count(layers) - idle_parameters(layers, text_config(network.decoder)))


def _count(module: nn.Module) -> int:
    """Parameters; of a matrix in 4 bits, two stand in every byte."""
    return sum(p.numel() * (2 if hasattr(p, "quant_state") else 1) for p in module.parameters())
