#!/usr/bin/env bash
# The main job: makes .venv, installs into it, and samples a small network.
set -euo pipefail
cd "$(dirname "$0")"
python3 -m venv .venv
.venv/bin/python -m pip install --quiet -e ".[quickstart]"
.venv/bin/python -m tfp_sgmcmc.quickstart "$@"
