"""Labels and regexes to token automata and flat trees; pure."""
