"""The temperature of a chain, and the step size that is found by it."""
