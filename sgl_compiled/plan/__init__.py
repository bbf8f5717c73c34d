"""Which passes resolve an answer, by predicted time; pure."""
