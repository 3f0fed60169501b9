"""The one training loop, and what it works on."""
