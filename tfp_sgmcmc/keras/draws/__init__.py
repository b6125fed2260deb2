"""Draws of a model's weights: when they are due, and what is made of them."""
