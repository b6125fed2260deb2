#!/usr/bin/env bash
# The tests: makes .venv, installs into it, and runs all that are not slow.
# Two runs, since TensorFlow keeps the memory of each compiled program until its
# process ends. A worker takes the tests of a file in a row where it can, since
# they share programs.
set -euo pipefail
cd "$(dirname "$0")"
python3 -m venv .venv
.venv/bin/python -m pip install --quiet -e ".[test]"
first=(tests/gradients tests/mcmc tests/pdmp tests/test_contract.py)
run=(.venv/bin/python -m pytest -n 2 --dist worksteal -q -m "not slow")
"${run[@]}" "${first[@]}"
"${run[@]}" "${first[@]/#/--ignore=}"
