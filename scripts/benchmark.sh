#!/usr/bin/env bash
# Measures this package beside fairseq's RoBERTa, Hugging Face's BERT and the bare matrix products.
#
#   bash scripts/benchmark.sh [--part PART] [-o OUT] [--device cuda] [--quick] [flags]
#
#   PART    steps   time of a step of training and of its parts, all models in turn, round by round
#           memory  peak memory of training, each model in a process of its own
#           growth  time and memory as sequences grow
#           train   whole updates: pretrain.sh beside stock fairseq-train, on the same data
#           corpus  corpus preparation beside SentencePiece and fairseq-preprocess
#           all     all of them (default): expect most of an hour on two CPU cores
#   OUT     gets benchmark.md and benchmark.json (default: runs/benchmark)
#
# --quick takes tiny models, to see that all runs. Hugging Face's BERT takes part where its library is installed
# (pip install -r requirements-benchmark.txt). Further flags choose cases, rounds, variants, threads, layers and
# texts: python -m tupe_fairseq.benchmark -h. DRY_RUN=1 prints the command.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi

run_last python -m tupe_fairseq.benchmark "$@"
