"""The chain that `fit` runs: its settings, its steps, its place on disk."""
