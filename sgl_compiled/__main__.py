"""``python -m sgl_compiled``."""

from sgl_compiled.cli import app

app()
