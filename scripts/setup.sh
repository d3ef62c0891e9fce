#!/usr/bin/env bash
# Makes the environment that everything here runs in: .venv with the tested versions.
#
#   [PYTHON=python3] [VENV=.venv] bash scripts/setup.sh
#
# PYTHON is the interpreter to use, 3.9 or newer; the versions in constraints.txt were tested on 3.11. VENV is
# the folder to make. A second call takes a second. DRY_RUN=1 prints the commands.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi
[[ $# -eq 0 ]] || die "takes no arguments (see -h); PYTHON= and VENV= are environment variables"

PYTHON=${PYTHON:-python3}
LOG=$VENV/setup.log
steps=4 number=0

# Prints a step, runs its command with the output in the log, and tells how long it took.
step() {
  local name=$1 start=$SECONDS
  shift
  if [[ -n ${DRY_RUN:-} ]]; then
    run "$@"
    return
  fi
  number=$((number + 1))
  printf '[%s/%s] %s: ' "$number" "$steps" "$name"
  if ! in_group "$@" >>"$LOG" 2>&1; then
    echo failed
    explain "$name"
  fi
  echo "$((SECONDS - start)) s"
}

# Ends with one sentence on why a step failed.
explain() {
  tail -n 5 "$LOG" >&2
  if grep -qE 'NewConnectionError|ConnectTimeout|NameResolutionError|Network is unreachable' "$LOG"; then
    die "$1: the package index cannot be reached; check the network, or pip's index and proxy settings"
  fi
  if grep -qE 'Could not find a version' "$LOG"; then
    die "$1: the package index has no version for this host (Python $version, $(uname -sm)), or cannot be" \
      "reached; check the network and pip's index settings, or use Python 3.11 on x86-64 Linux"
  fi
  if grep -qE 'No space left on device' "$LOG"; then
    die "$1: the disk is full; about 2 GB are needed, 7 GB where PyTorch comes with CUDA"
  fi
  if grep -qE 'ensurepip is not available' "$LOG"; then
    die "$1: this Python cannot make environments (Debian: apt-get install python3-venv)"
  fi
  die "$1 failed; the whole output is in $LOG"
}

version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
  die "no Python runs as '$PYTHON'; install Python 3.11, or name an interpreter with PYTHON="
minor=${version#3.}
[[ $version == 3.* && $minor -ge 9 ]] || die "Python $version is too old; name 3.9 or newer with PYTHON=, best 3.11"

wheel=no # is there a prebuilt fairseq?
if [[ $(uname -sm) == "Linux x86_64" && ($version == 3.11 || $version == 3.12) ]]; then
  wheel=yes
elif ! command -v c++ >/dev/null; then
  die "fairseq has no wheel for Python $version on $(uname -sm) and must be compiled: install a C++ compiler" \
    "(Debian: apt-get install g++), or use Python 3.11 on x86-64 Linux"
fi

stamp=$(cat "$ROOT"/requirements*.txt "$ROOT/constraints.txt" <(echo "$version $ROOT") | cksum)
if [[ $(cat "$VENV/.tupe-setup" 2>/dev/null) == "$stamp" ]]; then
  echo "$VENV is set up (Python $version)"
  exit
fi

tested=()
if [[ $version == 3.11 ]]; then
  tested=(-c "$ROOT/constraints.txt")
else
  echo "note: the pinned versions were tested on Python 3.11; on $version the newest that fit are taken"
fi

[[ -n ${DRY_RUN:-} ]] || mkdir -p "$VENV" || die "cannot make the folder $VENV; name another with VENV="
[[ -n ${DRY_RUN:-} ]] || : >"$LOG"
if [[ ! -x $VENV/bin/python ]]; then
  step "Python $version environment in $VENV" "$PYTHON" -m venv "$VENV"
elif [[ $("$VENV/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') != "$version" ]]; then
  die "$VENV holds another Python than $version; remove it, or name another folder with VENV="
else
  steps=3
fi
pip=("$VENV/bin/python" -m pip --disable-pip-version-check install)
torch=$(sed -n 's/^\(torch[>=0-9.]*\).*/\1/p' "$ROOT/requirements.txt")

step "PyTorch, the largest part" "${pip[@]}" "${tested[@]}" "$torch"
if [[ $wheel == no ]]; then
  # fairseq's build imports torch and numpy, so it cannot be isolated; pip 24.1 refuses fairseq 0.12.2.
  steps=$((steps + 1))
  step "what fairseq is compiled with" "${pip[@]}" 'pip<24.1' 'setuptools<81' wheel cython numpy
  pip+=(--no-build-isolation)
fi
step "fairseq, SentencePiece, TensorBoard" "${pip[@]}" "${tested[@]}" -r "$ROOT/requirements.txt"
step "development tools" "${pip[@]}" "${tested[@]}" -r "$ROOT/requirements-dev.txt"

[[ -z ${DRY_RUN:-} ]] || exit 0
# The checkout itself, importable from anywhere and editable, without writing into it.
"$VENV/bin/python" -c 'import sys, sysconfig; from pathlib import Path
Path(sysconfig.get_path("purelib"), "tupe_fairseq.pth").write_text(sys.argv[1] + "\n")' "$ROOT"
"$VENV/bin/python" -c 'import fairseq' >>"$LOG" 2>&1 || explain "importing fairseq"
echo "$stamp" >"$VENV/.tupe-setup"
echo "$VENV is set up (Python $version)"
