"""The seams to SGLang for ``select_k``."""
