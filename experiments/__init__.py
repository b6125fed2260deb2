"""Published results, each a command: `python -m experiments` lists them."""
