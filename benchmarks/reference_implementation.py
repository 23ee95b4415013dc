"""The reference implementation: one iteration as the authors' released code computes it, to compare ebft with.

Written from what that code computes (OpenRLHF with eager attention), plainly, so that what is left is the
cost of the computation itself:

- each of the n samples carries its own copy of the context: a batch of b*n sequences;
- the paper's order: after the T context tokens, token t of block b stands at T + t*B + b (blocks from 0 here), so
  that a sequence grows by B tokens per generated token;
- a rollout is G full passes without a cache, under a dense mask, with logits at every position;
- features are hidden states of a complete frozen copy, its upper layers and its head included, by
  FEATURE_PASSES passes over the finished sequences; the concatenated layers are normalised once;
- whitening is a singular value decomposition of the features themselves, [n, D] per context, in float32. The
  n x n matrix it gives is applied to the truth too, repeated n times, which leaves of it only a sign: the
  `reference` rewards of ebft;
- the loss takes log-softmax over the whole [b*n, L-1, V], and autograd goes back through it.

It leaves out costs of the released code: there, masks are filled entry by entry (hundreds of thousands of kernels a
step), logits are copied once more, and data are sent between processes.

In the options and the JSON of step.py its name is "released".

Shapes as in ebft: b sequences, n samples, B blocks (anchors), G tokens per completion, L = T + B*G, D features.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from step_settings import TEMPERATURE, Settings

# The released code runs the feature network three times over sequences where one pass would do.
FEATURE_PASSES = 3
RELATIVE_TOLERANCE = 1e-5  # of singular values, as in the released code


class ReferenceImplementation:
    """The parts of an iteration; `sequences` are [b*n, L].

    The model's attention implementation is set to `settings.released_attention`. `settings.released_micro_batch` counts
    sequences, each with its n copies, per pass; None takes all at once.
    """

    def __init__(self, model: PreTrainedModel, settings: Settings) -> None:
        self.model = model
        self.attention = settings.released_attention
        self.model.set_attn_implementation(self.attention)
        self.frozen = copy.deepcopy(model).requires_grad_(False).eval()
        self.T, self.G, self.n = settings.context_length, settings.horizon, settings.samples
        self.B = (self.T - self.G) // settings.stride
        self.anchors = torch.arange(1, self.B + 1, device=model.device) * settings.stride
        self.gamma, self.micro_batch = settings.gamma, settings.released_micro_batch

    # ---- layout ------------------------------------------------------------

    def pack(self, contexts: Tensor, completions: Tensor) -> Tensor:
        """[b, T] and completions [b, B, n, G] -> [b*n, L] in the paper's order."""
        generated = completions.permute(0, 2, 3, 1).flatten(2).flatten(0, 1)
        return torch.cat([contexts.repeat_interleave(self.n, 0), generated], 1)

    def positions(self, length: int) -> Tensor:
        steps = (length - self.T) // self.B
        generated = self.anchors + torch.arange(steps, device=self.anchors.device)[:, None]
        return torch.cat([torch.arange(self.T, device=self.anchors.device), generated.flatten()])[None]

    def mask(self, length: int) -> Tensor:
        """Who sees whom among the first `length` tokens, [1, 1, length, length]: bool; additive for eager."""
        slots = torch.arange(length, device=self.anchors.device)
        query, key = slots[:, None], slots
        block = (slots - self.T) % self.B
        end_of_context = torch.where(slots < self.T, slots + 1, self.anchors[block])
        sees_context = (key < self.T) & (key < end_of_context[:, None])
        sees_own = (query >= self.T) & (key >= self.T) & (block[:, None] == block) & (key <= query)
        allowed = (sees_context | sees_own)[None, None]
        if self.attention == "sdpa":
            return allowed
        dtype = self.model.dtype
        return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)

    # ---- the parts of an iteration ------------------------------------------------------------

    @torch.no_grad()
    def rollout(self, contexts: Tensor) -> Tensor:
        """Sequences [b*n, L] for contexts [b, T]."""
        sequences = []
        for copies in self._micro_batches(contexts.repeat_interleave(self.n, 0)):
            for step in range(self.G):
                length = copies.shape[1]
                logits = self._logits(copies, self.mask(length), self.positions(length))
                newest = logits[:, self.anchors - 1] if step == 0 else logits[:, -self.B :]
                probabilities = (newest / TEMPERATURE).softmax(-1)
                tokens = torch.multinomial(probabilities.flatten(0, 1), 1).view(-1, self.B)
                copies = torch.cat([copies, tokens], 1)
            sequences.append(copies)
        return torch.cat(sequences)

    @torch.no_grad()
    def features(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the samples [b, B, n, D] and of the truth [b, B, D], at the last token of each."""
        mask, positions = self.mask(sequences.shape[1]), self.positions(sequences.shape[1])
        depth = self.frozen.config.num_hidden_layers
        taps = [depth // 4, depth // 2, 3 * depth // 4]
        for _ in range(FEATURE_PASSES):
            parts = []
            for copies in self._micro_batches(sequences):
                output = self.frozen(
                    input_ids=copies,
                    attention_mask=mask,
                    position_ids=positions,
                    output_hidden_states=True,
                    use_cache=False,
                )
                parts.append(torch.cat([output.hidden_states[tap] for tap in taps], -1))
        hidden = F.normalize(torch.cat(parts).float(), dim=-1).unflatten(0, (-1, self.n))
        generated = hidden[:, :, self.T + (self.G - 1) * self.B :].transpose(1, 2)
        truth = hidden[:, 0, self.anchors + self.G - 1]
        return generated, truth

    def rewards(self, generated: Tensor, truth: Tensor, whitened: bool = True) -> tuple[Tensor, Tensor]:
        """Alignment and diversity terms [b, B, n]; whitened they are the `reference` rewards, else `none`."""
        truths = truth[..., None, :].expand_as(generated)
        if whitened:
            U, S, _ = torch.linalg.svd(generated, full_matrices=False)
            inverse = torch.where(S / S[..., :1] > RELATIVE_TOLERANCE, 1 / S, 0.0)
            W = (U * inverse[..., None, :]) @ U.transpose(-1, -2)
            generated, truths = W @ generated, W @ truths
        alignment = 2 * F.cosine_similarity(generated, truths, dim=-1)
        similarity = generated @ generated.transpose(-1, -2)
        others = similarity.sum(-1) - similarity.diagonal(dim1=-2, dim2=-1)
        return alignment, 2 * others / (self.n - 1)

    def advantages(self, sequences: Tensor, generated: Tensor, truth: Tensor) -> Tensor:
        """Rewards minus the leave-one-out baseline, [b, B, n]. The baseline needs n >= 3."""
        alignment, diversity = self.rewards(generated, truth)
        alignment_of_others = alignment.sum(-1, keepdim=True) - alignment
        diversity_of_others = diversity.sum(-1, keepdim=True) - diversity
        baseline = alignment_of_others / (self.n - 1) - (diversity_of_others - diversity) / (self.n - 2)
        return alignment - diversity - baseline

    def update(self, sequences: Tensor, advantages: Tensor) -> Tensor:
        """The loss, after its gradient has been added to the model's parameters."""
        mask, positions = self.mask(sequences.shape[1]), self.positions(sequences.shape[1])
        # [b*n, G*B] in the order of the generated tokens
        of_tokens = advantages.transpose(1, 2).flatten(0, 1).repeat(1, self.G)
        total = torch.zeros((), device=sequences.device)
        for copies, weights in zip(self._micro_batches(sequences), self._micro_batches(of_tokens), strict=True):
            log_probs = self._log_probs(self._logits(copies, mask, positions), copies)
            policy = -(weights * log_probs[:, self.T - 1 :]).mean()
            cross_entropy = -log_probs[:, : self.T - 1].mean()
            loss = (policy + self.gamma * cross_entropy) * (copies.shape[0] / sequences.shape[0])
            loss.backward()
            total += loss.detach()
        return total

    def _log_probs(self, logits: Tensor, sequences: Tensor) -> Tensor:
        """Log-probs [b*n, L-1] of all tokens but the first: the truth's at temperature 1, the samples' at theirs."""
        predictors = torch.cat(
            [
                logits[:, : self.T - 1],
                logits[:, self.anchors - 1] / TEMPERATURE,
                logits[:, self.T : -self.B] / TEMPERATURE,
            ],
            1,
        )
        return predictors.log_softmax(-1).gather(-1, sequences[:, 1:, None])[..., 0]

    def _logits(self, sequences: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        output = self.model(input_ids=sequences, attention_mask=mask, position_ids=positions, use_cache=False)
        return output.logits.float()

    def _micro_batches(self, per_copy: Tensor) -> tuple[Tensor, ...]:
        return per_copy.split(self.n * self.micro_batch if self.micro_batch else per_copy.shape[0])
