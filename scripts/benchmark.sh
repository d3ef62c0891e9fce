#!/usr/bin/env bash
# Measures this package beside fairseq's RoBERTa, Hugging Face's BERT and the bare matrix products.
#
#   bash scripts/benchmark.sh [--part steps|memory|growth|all] [-o OUT] [--device cuda] [flags]
#
#   steps   time of a step of training, all models in turn, round by round, and of its parts
#   memory  peak memory of a step, each model in a process of its own
#   growth  both as sequences grow from 128 to 4,096 tokens
#
# OUT (runs/benchmark) gets benchmark.md and benchmark.json. Hugging Face's BERT takes part where its library is
# installed: pip install -r requirements-benchmark.txt. Further flags choose cases, rounds, variants, threads and
# layers: python -m tupe_fairseq.benchmark -h. DRY_RUN=1 prints the command.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi

run python -m tupe_fairseq.benchmark "$@"
