"""``select_k`` in SGLang's frontend language."""
