#!/usr/bin/env bash
# Phase A: does the reward teach? EBFT with gamma 0 and 0.1, each also with permuted advantages, and SFT on the same
# packed sequences: 160 steps of Qwen2.5-Coder-0.5B-Instruct, answers only.
#
#   results/evidence/phase_a.sh SEED [METHOD ...]      # one H200; each method by itself or several side by side
set -euo pipefail
seed=$1
shift
methods=${*:-sft ebft-0 ebft-0-permuted ebft-0.1 ebft-0.1-permuted}
here=results/evidence
ebft_flags=(--horizon 8 --stride 8 --samples 4 --temperature 0.6 --whitening reference --short_truths true)
for method in $methods; do
  to=(--config $here/recipe.yaml --seed "$seed" --output_dir "runs/evidence/$method-seed$seed")
  case $method in
    sft) python3 -m ebft sft "${to[@]}" --max_length 512 --pack_training true --short_truths true ;;
    ebft-*-permuted)
      gamma=${method#ebft-}
      python3 $here/permuted.py train "${to[@]}" "${ebft_flags[@]}" --gamma "${gamma%-permuted}" ;;
    ebft-*) python3 -m ebft train "${to[@]}" "${ebft_flags[@]}" --gamma "${method#ebft-}" ;;
  esac
done
