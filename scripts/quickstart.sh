#!/usr/bin/env bash
# Does the whole job on this machine, in about five minutes on two CPU cores: BPE, pre-training, fine-tuning,
# curves.
#
#   [OUT_DIR=runs/quickstart] bash scripts/quickstart.sh [TEXT...]
#
# TEXT is UTF-8 text, a paragraph a line, with a blank line between documents; without any, the documentation
# that comes with Python. A quarter of the documents is kept from pre-training: sentences of theirs, some with
# three words moved, make the task to fine-tune on. What an earlier run left below OUT_DIR is replaced.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
case ${1:-} in
  -h | --help) usage && exit ;;
  -*) die "unknown flag $1 (see -h)" ;;
esac
for text in "$@"; do
  [[ -r $text && ! -d $text ]] || die "cannot read the text $text"
done
OUT_DIR=${OUT_DIR:-runs/quickstart}
mkdir -p "$OUT_DIR" || die "cannot make the folder $OUT_DIR; name another with OUT_DIR="
rm -rf "$OUT_DIR"/{text,corpus,pretrain,glue-bin,finetune,log,seconds.tsv,summary.json,loss.png,positions.png}
mkdir "$OUT_DIR/log"

# Runs a command as a step: all it says goes to a log, what the filter $2 lets through to the terminal.
step() {
  local name=$1 filter=$2 start=$SECONDS log="$OUT_DIR/log/${1// /-}.log"
  shift 2
  echo "== $name"
  if ! "$@" 2>&1 | tee "$log" | "$filter"; then
    tail -n 5 "$log" >&2
    die "'$name' failed; all it said is in $log"
  fi
  printf '%s\t%s\n' "$name" "$((SECONDS - start))" >>"$OUT_DIR/seconds.tsv"
}

all() {
  awk '{ print "  " $0; fflush() }'
}

# Of what fairseq-train says, the figures of the validations.
validations() {
  awk -F ' [|] ' '/ [|] valid [|] / {
    line = ""
    for (i = 1; i <= NF; i++) {
      if ($i ~ /^num_updates /) update = substr($i, 13)
      if ($i ~ /^(loss|mcc|accuracy) /) line = line "   " $i
    }
    printf "  update %5d%s\n", update, line
    fflush()
  }'
}

pretrain() {
  # Its rate of update 1 is 0: the first validation, after it, is of the untrained model.
  ARCH=tupe_r_tiny bash "$ROOT/scripts/pretrain.sh" "$OUT_DIR/corpus" "$OUT_DIR/pretrain" --max-update 1
  ARCH=tupe_r_tiny bash "$ROOT/scripts/pretrain.sh" "$OUT_DIR/corpus" "$OUT_DIR/pretrain"
}

step "set-up" all bash "$ROOT/scripts/setup.sh"
PATH=$VENV/bin:$PATH
step "text" all python -m tupe_fairseq.word_order -o "$OUT_DIR/text" "$@"
step "BPE" all bash "$ROOT/scripts/prepare_corpus.sh" -o "$OUT_DIR/corpus" \
  -v 2000 --shrink-vocab --valid-every 20 --min-letters 20 --min-letter-share 0.6 "$OUT_DIR/text/pretrain.txt"
step "pre-training" validations pretrain
step "GLUE preparation" all bash "$ROOT/scripts/prepare_glue.sh" \
  -g "$OUT_DIR/text/glue" -c "$OUT_DIR/corpus" -o "$OUT_DIR/glue-bin" WordOrder
step "fine-tuning" validations bash "$ROOT/scripts/finetune_glue.sh" WordOrder "$OUT_DIR/glue-bin" \
  "$OUT_DIR/pretrain/checkpoint_last.pt" "$OUT_DIR/finetune" --lr 3e-4 --max-epoch 3

echo "== report"
python -m tupe_fairseq.quickstart_report "$OUT_DIR"
cat <<EOF

Pictures:    $OUT_DIR/loss.png, $OUT_DIR/positions.png
Figures:     $OUT_DIR/summary.json
TensorBoard: $VENV/bin/tensorboard --logdir $OUT_DIR
EOF
