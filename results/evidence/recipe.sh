#!/usr/bin/env bash
# A recipe for people on real data, on a GPU held to the memory it is made for: does it run, what does it need, and what
# does the model answer before and after?
#
#   results/evidence/recipe.sh qwen-1.5b 78 TRAIN.jsonl VALIDATION.jsonl PROMPTS.jsonl HumanEval.jsonl [FLAG ...]
#
# Rows in chat form. Answers lie in answers/RECIPE, what it needed in answers/RECIPE/peak.json; `ebft score` scores.
set -euo pipefail
recipe=$1 gib=$2 train=$3 validation=$4 prompts=$5 problems=$6
shift 6
here=results/evidence out=answers/$recipe
model=${recipe%-lora} && model=qwen2.5-coder-${model#qwen-}
mkdir -p "$out"

answer() { # MODEL WHEN
  python3 -m ebft generate --model "$1" --file "$prompts" --prompt-style chat --temperature 0 --max-new-tokens 400 \
    --output "$out/$2.jsonl"
}

python3 $here/held_to.py "$gib" "$out/peak.json" train --config "$recipe" --dataset "$train" \
  --validation_dataset "$validation" --max_steps 300 --save_strategy no --eval_steps 0.5 --show_prompts 0 "$@"
answer "runs/$recipe" after
python3 $here/answers.py "runs/$recipe/final" --problems "$problems" --out "$out/humaneval" --forms chat
answer "$model" before
