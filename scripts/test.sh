#!/usr/bin/env bash
# Sets everything up, then runs lint, type check and tests.
#
#   bash scripts/test.sh [pytest flags]
#
# Tests run side by side, a file on each core; "-n 0" runs them one after the other.
# DRY_RUN=1 prints the commands. For example "-m 'not slow'" for the quick tests alone, or "-k bias".

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi

run bash "$ROOT/scripts/setup.sh"
PATH=$VENV/bin:$PATH
cd -- "$ROOT"
run ruff check .
run ruff format --check .
run mypy
run shellcheck -x scripts/*.sh scripts/*.sbatch tests/*.sh
run_last python -m pytest -n auto --dist loadfile "$@"
