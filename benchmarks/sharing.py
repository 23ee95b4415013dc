"""How much the completions of a real model have in common, by number of samples and temperature.

Of all n*B*G generated tokens, the shares that the feature pass and the update compute, and of the completions those
that differ. No time is measured.

    python benchmarks/sharing.py --model FOLDER --text FILE --json benchmarks/results/sharing-smollm2-135m.json
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoModelForCausalLM

from command_line import Parser, positive
from ebft.config.method import MethodConfig
from ebft.iteration import packings, roll_out
from ebft.method.layout import StridedLayout
from ebft.method.sampling import sequence_seeds
from provenance import command_and_date, commit
from step_settings import SEED
from trained_model import text_contexts


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--model", required=True, help="folder of a model")
    parser.add_argument("--text", type=Path, required=True, help="JSON lines, as for training")
    parser.add_argument("--samples", type=positive, nargs="+", default=[2, 4, 8, 16], metavar="n")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.6, 1.0])
    parser.add_argument("--sequences", type=positive, default=16)
    parser.add_argument("--context-length", type=positive, default=256)
    parser.add_argument("--horizon", type=positive, default=8)
    parser.add_argument("--stride", type=positive, default=8)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    parser.check_device(args.device)
    parser.check_output(args.json)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device)
    contexts = text_contexts(args.text, args.model, args.sequences, args.context_length).to(args.device)
    rows = [shares(model, contexts, args, *of) for of in tqdm(list(product(args.samples, args.temperatures)))]
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if args.json is not None:
        result = {**command_and_date("sharing.py", sys.argv[1:]), "commit": commit(), "rows": rows}
        args.json.write_text(json.dumps(result, indent=2) + "\n")


def shares(
    model: nn.Module, contexts: Tensor, args: argparse.Namespace, samples: int, temperature: float
) -> dict[str, float]:
    """A row of the result. The update's share leaves out what predicts nothing, and equal completions."""
    layout = StridedLayout(args.context_length, args.horizon, args.stride, samples).to(args.device)
    config = MethodConfig(
        context_length=args.context_length,
        horizon=args.horizon,
        stride=args.stride,
        samples=samples,
        temperature=temperature,
    )
    seeds = sequence_seeds(SEED, 0, torch.arange(len(contexts), device=args.device))
    rollouts, _ = roll_out(model, contexts, layout, seeds, config, None)
    to_score, to_train = packings(layout, contexts, rollouts, config)
    first_of_group = rollouts.groups == torch.arange(samples, device=args.device)
    tokens = rollouts.completions.numel()
    return {
        "samples": samples,
        "temperature": temperature,
        "distinct_completions": first_of_group.double().mean().item(),
        "scored": sum(to_score.nodes) / tokens,
        "trained": sum(to_train.nodes) / tokens,
        "equal_anchors": (rollouts.groups == 0).all(-1).double().mean().item(),
    }


if __name__ == "__main__":
    main()
