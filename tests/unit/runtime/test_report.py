"""What a report refuses, it can refuse before any pass."""

from __future__ import annotations

import warnings

import pytest

from sgl_compiled.errors import RequestError
from sgl_compiled.grammar.actions import ActionGrammar
from sgl_compiled.grammar.compile import compile_grammar
from tests.unit.grammar.toy import toy

with warnings.catch_warnings():
    # Importing SGLang on a CPU warns about kernels that it will not use.
    warnings.simplefilter("ignore")
    from sgl_compiled.runtime.report import MAX_TREE_TOKENS, check_evidence


def test_long_answers_have_no_tree_to_show() -> None:
    info = toy([*"ab"])
    for longest in (MAX_TREE_TOKENS, MAX_TREE_TOKENS + 1):
        compiled = compile_grammar(ActionGrammar.from_labels(["a", "b" * longest], template="raw"), info)
        if longest == MAX_TREE_TOKENS:
            check_evidence(compiled)
        else:
            with pytest.raises(RequestError, match="without 'evidence'"):
                check_evidence(compiled)
