"""Sections of ``docs/measured.md``, each made from the records of one file."""
