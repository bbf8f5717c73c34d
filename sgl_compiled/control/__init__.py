"""Decisions from logits: walk, margins, probabilities, set posterior, parity."""
