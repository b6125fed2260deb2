"""Nothing in here is public."""
