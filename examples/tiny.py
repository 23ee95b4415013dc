"""EBFT in one file: a small byte-level model learns to write like the Python standard library, on a CPU, in minutes.

First it is trained a little with next-token cross-entropy, so that its rollouts mean something. Then EBFT takes over:
the features of its own eight-byte rollouts should match those of the real text. With `--gamma 0` no token of the text
is a training target any more, and the feature-matching loss falls all the same; the default adds a little
cross-entropy, as most of the paper's runs do, and both measures fall.

    python examples/tiny.py [--steps 60] [--gamma 0.1]
"""

from __future__ import annotations

import argparse
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from ebft.method.cross_entropy import log_probs_at_temperatures
from ebft.method.layout import StridedLayout
from ebft.method.losses import ebft_loss
from ebft.method.measures import Estimate, ratio_of_sums
from ebft.method.rewards import (
    conditional_feature_matching_loss,
    feature_matching_rewards,
    leave_one_out_advantages,
    token_groups,
)
from ebft.model.backbone import output_head, packed_hidden_states
from ebft.model.features import FeatureNetwork
from ebft.model.rollout import rollout

CONTEXT, HORIZON, STRIDE, SAMPLES, TEMPERATURE = 128, 8, 8, 4, 0.6
BATCH = 16


def standard_library() -> Tensor:
    """The bytes of the running Python's own modules, cut into sequences [N, T]."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"\n".join(file.read_bytes() for file in files)
    sequences = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    sequences = sequences[: len(sequences) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    return sequences[torch.randperm(len(sequences), generator=torch.Generator().manual_seed(0))]


def ebft_step(model: LlamaForCausalLM, features: FeatureNetwork, ids: Tensor, step: int, gamma: float) -> float:
    """One iteration: rollout, features, reward, advantage, update. Returns the mean reward."""
    layout = StridedLayout(CONTEXT, HORIZON, STRIDE, SAMPLES)
    seeds = step * BATCH + torch.arange(BATCH)
    completions = rollout(model, ids, layout, TEMPERATURE, seeds=seeds)  # [b, B, n, G]
    packed = layout.pack(ids, completions)
    generated, truth = features(packed, layout)  # [b, B, n, D], [b, B, D]
    groups = token_groups(completions)  # [b, B, n]
    alignment, diversity = feature_matching_rewards(generated, truth, whitening="reference", groups=groups)
    advantages = leave_one_out_advantages(alignment, diversity)  # [b, B, n]
    hidden = packed_hidden_states(model, packed, layout)
    ebft_loss(hidden, output_head(model), packed, layout, advantages, TEMPERATURE, gamma).loss.backward()
    return float((alignment - diversity).mean())


def next_token_loss(model: LlamaForCausalLM, ids: Tensor) -> Tensor:
    return model(input_ids=ids, labels=ids).loss


@torch.no_grad()
def evaluate(model: LlamaForCausalLM, features: FeatureNetwork, ids: Tensor) -> tuple[Estimate, Estimate]:
    """Cross-entropy and unbiased conditional feature-matching loss on held-out sequences, at a fixed seed."""
    layout = StridedLayout(CONTEXT, HORIZON, STRIDE, SAMPLES)
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1].flatten(0, 1)
    log_probs = log_probs_at_temperatures(hidden, output_head(model), ids[:, 1:].flatten(), [1.0])
    cross_entropy = -log_probs.view(len(ids), -1).mean(1)
    completions = rollout(model, ids, layout, TEMPERATURE, seeds=torch.arange(len(ids)))
    generated, truth = features(layout.pack(ids, completions), layout)
    matching = conditional_feature_matching_loss(generated, truth).mean(1)
    ones = [1.0] * len(ids)  # sequences of one length: the mean over them is that over tokens, or contexts
    return ratio_of_sums(cross_entropy.tolist(), ones), ratio_of_sums(matching.tolist(), ones)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm-up-steps", type=int, default=250, help="cross-entropy steps before EBFT")
    parser.add_argument("--steps", type=int, default=60, help="EBFT steps")
    parser.add_argument("--gamma", type=float, default=0.1, help="weight of the cross-entropy beside feature matching")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    sequences = standard_library()
    held_out, training = sequences[:64], sequences[64:]
    sizes = dict(hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, tie_word_embeddings=True, **sizes))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(training):,} sequences of {CONTEXT} bytes")

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(arguments.warm_up_steps):
        loss = next_token_loss(model, training[torch.randint(len(training), (BATCH,))])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 49 or step == arguments.warm_up_steps - 1:
            print(f"cross-entropy step {step + 1:4d}  loss {loss.item():.3f}")

    features = FeatureNetwork(model)  # a frozen copy of the model as it is now
    before = evaluate(model, features, held_out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    start = time.perf_counter()
    for step in range(arguments.steps):
        reward = ebft_step(model, features, training[torch.randint(len(training), (BATCH,))], step, arguments.gamma)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9 or step == arguments.steps - 1:
            seconds = (time.perf_counter() - start) / (step + 1)
            print(f"EBFT step {step + 1:4d}  mean reward {reward:+.3f}  {seconds:.2f} s a step")
    after = evaluate(model, features, held_out)

    print(f"\n{'on held-out text':<28}{'before EBFT':>20}{'after':>20}")
    for name, old, new in zip(("cross-entropy (nats/byte)", "feature-matching loss"), before, after, strict=True):
        old_text, new_text = (f"{e.mean:.4f} +- {e.standard_error:.4f}" for e in (old, new))
        print(f"{name:<28}{old_text:>20}{new_text:>20}")


if __name__ == "__main__":
    main()
