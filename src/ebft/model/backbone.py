"""What ebft needs of a transformers model: its decoder, its layers, its head, and attention that takes a pass.

`prepare_model` says why a model is not supported, in one line, before anything is computed with it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from ebft.method import Backend
from ebft.method.compiling import prepare_compiling
from ebft.method.cross_entropy import Head
from ebft.method.layout import PackedLayout, StridedLayout
from ebft.model.attention import ATTENTION_NAME, CachedPass, PackedPass, Pass

M = TypeVar("M", bound=nn.Module)
# Layers that carry a state from token to token, which completions cannot share, or whose masks ebft does not know.
_OTHER_LAYERS = ("mamba", "linear_attention", "recurrent", "conv", "ssm", "chunked", "compressed", "indexer")
_SUPPORTED = "ebft supports decoder-only models with attention in every layer and rotary or absolute positions, such "
_SUPPORTED += "as Llama or GPT-2"


def base_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model under wrappers (DistributedDataParallel, torch.compile, peft)."""
    inner: Any = getattr(model, "module", model)
    inner = getattr(inner, "_orig_mod", inner)
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    return inner


def adapter_parameters(module: nn.Module) -> set[int]:
    """The ids of parameters that belong to a peft adapter of any kind, modules that it trains whole included."""
    found: set[int] = set()
    for layer in module.modules():
        for name in (*getattr(layer, "adapter_layer_names", ()), *getattr(layer, "other_param_names", ())):
            held = getattr(layer, name, None)
            found.update(map(id, held.parameters() if isinstance(held, nn.Module) else [held]))
    return found


def text_config(model: nn.Module) -> PreTrainedConfig:
    """Of a model or a decoder, the part of its configuration that describes text: models with several modalities have
    more."""
    return base_model(model).config.get_text_config(decoder=True)


def prepare_model(model: nn.Module) -> PreTrainedModel:
    """Set the model's attention to ebft's, once, after checking that ebft supports it.

    Plain calls of the model keep working as before. Returns the transformers model under any wrapper.
    """
    base = base_model(model)
    config = text_config(base)
    before = config._attn_implementation
    if before == ATTENTION_NAME:
        return base
    layers = set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())
    if odd := sorted(layer for layer in layers if any(other in layer for other in _OTHER_LAYERS)):
        raise ValueError(f"{type(base).__name__} has layers of type {', '.join(odd)}; {_SUPPORTED}")
    output_head(base)
    base.set_attn_implementation(ATTENTION_NAME)
    if input_embeddings(base).is_meta:
        return base  # no weights: another process has them, and has looked
    with ExitStack() as undo:
        undo.callback(base.set_attn_implementation, before)
        _check_invariant(base)
        undo.pop_all()  # it is as it should be, and stays
    return base


def output_head(model: nn.Module) -> Head:
    """The model's output projection, with the scale or soft-cap some families put behind it. Where an adapter trains a
    copy of the projection and is off (`disable_adapter`), it is the original."""
    base = base_model(model)
    config = text_config(base)
    module: Any = base.get_output_embeddings()
    # peft: a fully trained copy of the head hides behind a wrapper.
    if hasattr(module, "modules_to_save") and hasattr(module, "active_adapters"):
        off = module.disable_adapters or not module.active_adapters
        module = module.original_module if off else module.modules_to_save[module.active_adapters[0]]
    if not isinstance(module, nn.Linear):  # a LoRA on the head is none either
        what = f"the output head is a {type(module).__name__} and no linear layer"
        raise ValueError(f"{what}; load models with AutoModelForCausalLM, without an adapter on lm_head")
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    return Head(module.weight, module.bias, scale, getattr(config, "final_logit_softcapping", None))


def decoder_of(model: nn.Module) -> nn.Module:
    """The stack of layers without the head."""
    return base_model(model).get_decoder()


def decoder_layers(decoder: nn.Module) -> tuple[str, nn.ModuleList]:
    """The decoder's list of layers and the name it goes by."""
    depth = text_config(decoder).num_hidden_layers
    for name, child in decoder.named_children():
        if isinstance(child, nn.ModuleList) and len(child) == depth:
            return name, child
    raise ValueError(f"{type(decoder).__name__} has no list of its {depth} layers; ebft cannot tap features from it")


def compile_layers(decoder: nn.Module) -> None:
    """Compile every layer's forward pass in place, for a GPU.

    One compiled layer serves all layers of its kind, so that warming up takes seconds where compiling a whole model
    takes minutes. Attention stays outside (`attention._attend`), and so do hooks on the layers. The layers get a class
    of their own instead of a function each: a copy of the model computes with its own weights.
    """
    for layer in decoder_layers(decoder)[1]:
        layer.__class__ = _compiled_class(type(layer))  # type: ignore[arg-type]


@cache
def _compiled_class(layer_class: Any) -> Any:
    if hasattr(layer_class, "_ebft_compiled"):
        return layer_class
    prepare_compiling()
    plain = layer_class.forward
    fixed_shapes, any_rows = (torch.compile(plain, dynamic=dynamic) for dynamic in (False, True))

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Only ebft's own passes have a few fixed shapes; text generation would compile for every length it reaches.
        ebft_pass = kwargs.get("ebft_pass")
        if ebft_pass is None:
            return plain(self, *args, **kwargs)
        compiled = fixed_shapes if ebft_pass.computed is None else any_rows
        return compiled(self, *args, **kwargs)

    return type(layer_class.__name__, (layer_class,), {"forward": forward, "_ebft_compiled": True})


def run_decoder(decoder: nn.Module, ids: Tensor, position_ids: Tensor, ebft_pass: Pass) -> Tensor:
    """Last hidden states after the final norm, [b, tokens, H], or [1, R, H] of the tokens that the pass computes."""
    position_ids = position_ids.expand(ids.shape)
    if ebft_pass.computed is not None:
        ids, position_ids = ebft_pass.computed.pick(ids), ebft_pass.computed.pick(position_ids)
    # A mask of four dimensions keeps transformers from building one; attention looks at the pass instead. This one
    # fits no attention, so that a layer that ignores the pass fails loudly.
    no_mask = torch.empty(0, 0, 0, 0, dtype=torch.bool, device=ids.device)
    # The weights of a sharded model are gathered by calls of the whole model only (`sharding`).
    called_by = getattr(decoder, "called_by", None)
    run = decoder if called_by is None else partial(called_by, decoder)
    output = run(
        input_ids=ids,
        position_ids=position_ids.contiguous(),  # compiled layers tell strides apart
        attention_mask=no_mask,
        use_cache=False,
        ebft_pass=ebft_pass,
    )
    return output.last_hidden_state


def packed_hidden_states(
    model: nn.Module, packed_ids: Tensor, layout: PackedLayout, backend: Backend = "auto", whole: bool = True
) -> Tensor:
    """Last hidden states [b, S, H] of packed sequences, with gradients if they are on.

    whole: False where nobody looks at places without a token (`layout.has_token`); on a CPU they take no time then.
    """
    decoder = decoder_of(prepare_model(model))
    layout = fitting_layout(decoder, layout, packed_ids)
    packed_pass = PackedPass(layout, backend, None if whole else len(packed_ids))
    hidden = run_decoder(decoder, packed_ids, layout.position_ids, packed_pass)
    return hidden if packed_pass.computed is None else packed_pass.computed.spread(hidden)


def input_embeddings(model: nn.Module) -> Tensor:
    embeddings: Any = base_model(model).get_input_embeddings()
    return embeddings.weight


def end_tokens_of(model: nn.Module) -> list[int]:
    """The tokens with which the model ends what it writes, by its own settings; empty if they do not say."""
    places = (base_model(model).generation_config, text_config(model))
    named: Any = next((end for place in places if (end := getattr(place, "eos_token_id", None)) is not None), [])
    return named if isinstance(named, list) else [named]


@contextmanager
def evaluating(model: nn.Module, training: bool = False) -> Iterator[None]:
    """No dropout inside; the mode of every module as it was, after. training: the other way round."""
    changed = [module for module in model.modules() if module.training != training]
    model.train(training)
    try:
        yield
    finally:
        for module in changed:
            module.training = not training


# ---- the check of a model before it is used ------------------------------------------------------------------------


@torch.no_grad()
def _check_invariant(base: PreTrainedModel) -> None:
    """The packed and the cached pass of a tiny example must equal a plain sequence, for this very model: no list of
    families finds ignored positions and windows, or transformed logits. In float32: rounding may grow with depth."""
    layout, context, completion = _example(base)
    anchor = int(layout.anchors[0])
    plain = torch.cat([context[:, :anchor], completion[:, 0, 0]], 1)
    name = type(base).__name__
    with evaluating(base), _short_window(base), in_float32(base):
        try:
            expected = base(input_ids=plain, use_cache=False).logits[0, anchor - 1 :].float()
            packed = _packed_rows(base, layout, layout.pack(context, completion))
            cached = _cached_rows(base, layout, context, completion)
        except Exception as error:  # whatever a model does with arguments that it does not know
            raise ValueError(f"{name} does not pass ebft's attention through ({error}); {_SUPPORTED}") from error
        head = output_head(base)
    for rows, where in (packed, "for a packed sequence"), (cached, "in the cached passes of a rollout"):
        found = head.logits(rows).float()
        # Rounding of the model's own precision, with room; a wrong mask or position is off by the size of the logits.
        difference = _relative_difference(found, expected[: len(found)])
        if not difference <= max(5 * torch.finfo(rows.dtype).eps ** 0.5, 1e-3):
            what = f"{name} gives other logits {where} than for a plain one (relative difference {difference:.2g})"
            raise ValueError(f"{what}: attention, positions or head do more than ebft knows of, or weights are NaN")


@torch.no_grad()
def check_training_pass(model: nn.Module) -> PreTrainedModel:
    """`prepare_model`, and that the model computes the same in training mode as in evaluation, where it samples.

    Finds dropout of any kind that is still on, and noise. Noise of a router is looked for by name: it changes the
    choice of an expert rarely, and a few tokens may not show it.
    """
    base = prepare_model(model)
    settings = [setting for module in base.modules() for setting in vars(module).items()]
    noise = [f"{name}={value}" for name, value in settings if "jitter" in name and value and isinstance(value, float)]
    if input_embeddings(base).is_meta:
        return base
    layout, context, completion = _example(base)
    packed = layout.pack(context, completion)
    with torch.random.fork_rng([packed.device] if packed.is_cuda else []):  # what is drawn here must not change the run
        with evaluating(base):
            expected = _packed_rows(base, layout, packed).float()
        with evaluating(base, training=True):
            twice = [_packed_rows(base, layout, packed) for _ in range(2)]
    difference = max(_relative_difference(found.float(), expected) for found in twice)
    # The same kernels on the same numbers: at most sums in another order. The policy gradient needs the log-probs that
    # were sampled from.
    if noise or not difference <= max(8 * torch.finfo(twice[0].dtype).eps, 1e-4):
        found = ", ".join([*dict.fromkeys(noise), f"relative difference {difference:.2g}"])
        what = f"{type(base).__name__} computes something else in training than in evaluation ({found})"
        way_out = "set it to 0 in the model's configuration"
        raise ValueError(f"{what}: by dropout or noise that ebft cannot turn off; {way_out}")
    return base


def _example(base: PreTrainedModel) -> tuple[PackedLayout, Tensor, Tensor]:
    """A layout with one anchor, its context [1, T] and a completion [1, 1, 1, G]."""
    device = input_embeddings(base).device
    layout = StridedLayout(context_length=8, horizon=3, stride=5, samples=1).to(device)
    # Tokens from all over the vocabulary: its first ones are often special, and what a model makes of a row of those
    # depends on the last digit (SmolLM2-135M: 100 times as much as for these).
    vocabulary = min(len(input_embeddings(base)), len(output_head(base).weight))
    ids = torch.arange(1, 12, device=device)[None] * 7919 % vocabulary
    return layout, ids[:, :8], ids[:, None, None, 8:]


def _packed_rows(base: PreTrainedModel, layout: PackedLayout, packed: Tensor) -> Tensor:
    """Hidden states before the anchor and of the completion, [1 + G, H]."""
    hidden = run_decoder(decoder_of(base), packed, layout.position_ids, PackedPass(layout, "sdpa"))
    return torch.cat([layout.before_anchors(hidden)[0], hidden[0, layout.completion_slots[0, 0]]])


def _cached_rows(base: PreTrainedModel, layout: PackedLayout, context: Tensor, completion: Tensor) -> Tensor:
    """The same by the passes of a rollout, which does not run the completion's last token, [G, H]."""
    T, G, decoder, cached = layout.context_length, layout.horizon, decoder_of(base), CachedPass(layout, "sdpa")
    rows = [layout.before_anchors(run_decoder(decoder, context, layout.position_ids[..., :T], cached))[0]]
    for cached.step in range(G - 1):
        tokens, positions = completion[:, 0, :, cached.step], layout.position_ids[..., T + cached.step :: G]
        rows.append(run_decoder(decoder, tokens, positions, cached)[0])
    return torch.cat(rows)


def _relative_difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


@contextmanager
def _short_window(base: PreTrainedModel) -> Iterator[None]:
    """Inside, sliding windows show two tokens, so that the few of the check reach beyond them: in configurations, which
    masks are built from, and in layers that have taken the number over."""
    with ExitStack() as stack:
        for module in base.modules():
            holder: Any
            for holder in (module, getattr(module, "config", None), text_config(base)):
                window = getattr(holder, "sliding_window", None)
                if isinstance(window, int) and window > 2:
                    stack.callback(setattr, holder, "sliding_window", window)
                    holder.sliding_window = 2
        yield


# ---- rotary positions that depend on how long a sequence is --------------------------------------------------------


def fitting_layout(decoder: nn.Module, layout: PackedLayout, ids: Tensor) -> PackedLayout:
    """The layout where the sequences are, if it is one of so many, and of a length that this model can have packed."""
    if layout.batch_size not in (None, len(ids)):
        raise ValueError(f"the layout describes {layout.batch_size} sequences but the batch has {len(ids)}")
    check_tokens(decoder, max(layout.context_length, max(layout.furthest_context, default=0) + layout.horizon))
    return layout.to(ids.device)


def check_tokens(decoder: nn.Module, tokens: int) -> None:
    """Whether sequences of so many tokens, and all shorter ones, are computed with the same rotary frequencies: a
    packed sequence has one set of them, and its completions must have those of plain sequences."""
    config = text_config(decoder)
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # Models with several kinds of layers have parameters for each.
    nested = [value for value in given.values() if isinstance(value, dict) and "rope_type" in value]
    for parameters in nested or [given]:
        kind, longest = str(parameters.get("rope_type", parameters.get("type"))), tokens
        if "dynamic" in kind:
            longest = int(config.max_position_embeddings)
        elif kind == "longrope":
            longest = int(parameters["original_max_position_embeddings"])
        if tokens > longest:
            what = f"{type(decoder).__name__} has {kind} RoPE, whose frequencies change when a sequence is longer than"
            raise ValueError(f"{what} {longest} tokens, and completions must share them; use context_length<={longest}")


# ---- mixtures of experts -------------------------------------------------------------------------------------------


def idle_parameters(module: nn.Module, config: PreTrainedConfig) -> int:
    """Parameters that a token does not meet, those of the experts it does not go to. Transformers stacks the matrices
    of all experts of a layer, [experts, out, in]."""
    names = ("num_experts_per_tok", "moe_topk", "top_k_experts")  # of how many a token goes to
    chosen = next((getattr(config, name) for name in names if hasattr(config, name)), None)
    chosen = max(chosen) if isinstance(chosen, list) else chosen  # HunYuan's has one for every layer
    idle = 0
    for part in module.modules():
        held = list(part.parameters(recurse=False))
        experts = getattr(part, "num_experts", 0)
        if experts and chosen and any(p.dim() == 3 for p in held):
            idle += sum(p.numel() for p in held) // experts * (experts - chosen)
    return idle


# ---- a model in float32 for a moment -------------------------------------------------------------------------------


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model computes in float32, for calls without gradients: one layer at a time, and what is outside of
    layers. After, its weights are the same tensors. Weights that are quantised or elsewhere stay as they are."""
    narrow = (torch.bfloat16, torch.float16)
    kept: dict[int, Tensor] = {}  # the own data of every tensor that is wide now

    def tensors_of(module: nn.Module) -> list[Tensor]:
        return [*module.parameters(), *module.buffers()]

    def widen(tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.dtype in narrow:
                kept[id(tensor)], tensor.data = tensor.data, tensor.data.float()

    def restore(tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if id(tensor) in kept:
                tensor.data = kept.pop(id(tensor))

    known = all(p.dtype in (*narrow, torch.float32, torch.float64) and not p.is_meta for p in model.parameters())
    with torch.autocast(next(model.parameters()).device.type, enabled=False), ExitStack() as stack:
        if known and getattr(model, "hf_quantizer", None) is None:
            layers = decoder_layers(decoder_of(model))[1]
            stack.callback(restore, tensors_of(model))
            for layer in layers:
                before = layer.register_forward_pre_hook(lambda layer, _: widen(tensors_of(layer)))
                after = layer.register_forward_hook(lambda layer, *_: restore(tensors_of(layer)), always_call=True)
                stack.enter_context(before)
                stack.enter_context(after)
            inside = set(map(id, tensors_of(layers)))
            widen(tensor for tensor in tensors_of(model) if id(tensor) not in inside)
        yield


# ---- weights in another precision, to compute with -----------------------------------------------------------------


def copy_in_dtype(module: M, dtype: torch.dtype | None) -> tuple[M, list[tuple[nn.Parameter, nn.Parameter]]]:
    """A copy with its parameters in `dtype`, and the pairs (original, copied). Not its buffers: frequencies of rotary
    embeddings in bf16 would turn every position into another one. No copy in the old precision is made on the way."""
    pairs = []
    for parameter in module.parameters():
        copied = parameter.detach().to(dtype or parameter.dtype, copy=True)
        pairs.append((parameter, nn.Parameter(copied, parameter.requires_grad)))
    return copy.deepcopy(module, {id(parameter): copied for parameter, copied in pairs}), pairs


class WorkingCopy:
    """`model` computes, in `dtype`; `trained` is what the optimiser sees, what is saved and what is resumed.

    At learning rate 1e-6 a bf16 weight does not move, so the optimiser keeps float32 ones. Autocast would compute norms
    and residuals in float32, twice the bytes. The gradients of the copy are added to those of the float32 weights as
    soon as a parameter has one, in float32, so that many micro-batches lose nothing to rounding; after the optimiser's
    step the copy is refreshed.
    """

    def __init__(self, trained: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        self.trained = trained
        self.model: Any
        self.model, self._pairs = copy_in_dtype(trained, dtype)
        for parameter, copied in self._pairs:
            if copied.requires_grad:
                copied.register_post_accumulate_grad_hook(partial(_hand_over, parameter))

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the trained weights; call it whenever they may have changed."""
        torch._foreach_copy_([copied for _, copied in self._pairs], [parameter for parameter, _ in self._pairs])


def _hand_over(trained: nn.Parameter, copied: Tensor) -> None:
    """Move the gradient of a copy to its original."""
    gradient, copied.grad = copied.grad, None
    assert gradient is not None
    if trained.grad is None:
        trained.grad = gradient.to(trained.dtype)
    else:
        trained.grad.add_(gradient)
