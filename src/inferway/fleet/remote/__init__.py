"""Prompts that cannot be made here: engines render them."""
