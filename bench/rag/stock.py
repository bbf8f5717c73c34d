"""Arms of an unmodified SGLang: regex, free text, a JSON schema, choices, and letters scored at one position."""

from __future__ import annotations

import json
import string
from typing import Any

import sglang as sgl

from bench.common import json_list_regex
from bench.rag.arm import Arm, Choice, Engine, SkipArmError, read_names
from bench.rag.tasks import Ask

__all__ = ["ChoicesArm", "FreeArm", "LettersArm", "RegexArm", "SchemaArm"]

LETTERS = string.ascii_uppercase + string.ascii_lowercase


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _most_tokens(engine: Engine, ask: Ask) -> int:
    """Return the tokens of the longest answer, and a few to spare."""
    longest = sorted((engine.size(_quoted(name)) for name in ask.names), reverse=True)[: ask.k]
    return sum(longest) + 2 * ask.k + 4


def _choice(out: Any, ask: Ask, text: str | None = None) -> Choice:
    text = out["text"] if text is None else text
    picks, error = read_names(text, ask.names, ask.k)
    meta = out["meta_info"]
    return Choice(
        picks,
        text,
        output_tokens=meta["completion_tokens"],
        passes=meta["completion_tokens"],
        positions=meta["completion_tokens"],
        prompt_tokens=meta["prompt_tokens"],
        cached_tokens=meta["cached_tokens"],
        error=error,
    )


class RegexArm(Arm):
    """The server's grammar backend under a regex, in whatever spelling the model prefers."""

    name = "regex"

    def prepare(self, engine: Engine, ask: Ask) -> None:
        engine.warm(ask.prompt())
        engine.warm_regex(json_list_regex(ask.names, ask.k))

    def choose(self, engine: Engine, ask: Ask) -> Choice:
        # Odd spellings take more tokens than the canonical one.
        sampling = {"regex": json_list_regex(ask.names, ask.k), "max_new_tokens": 4 * _most_tokens(engine, ask)}
        return _choice(engine.generate(ask.prompt(), sampling), ask)


class FreeArm(Arm):
    """Free text, told how many names to write."""

    name = "free"

    @staticmethod
    def _prompt(ask: Ask) -> str:
        return ask.prompt(f"exactly {ask.k} of the names above, as a JSON list of strings:")

    def prepare(self, engine: Engine, ask: Ask) -> None:
        engine.warm(self._prompt(ask))

    def choose(self, engine: Engine, ask: Ask) -> Choice:
        sampling = {"max_new_tokens": _most_tokens(engine, ask), "stop": "]", "no_stop_trim": True}
        return _choice(engine.generate(self._prompt(ask), sampling), ask)


class SchemaArm(Arm):
    """A JSON schema of ``k`` strings, the names left to the model, capped at the tokens of the longest right answer."""

    name = "capped-json"

    @staticmethod
    def _schema(k: int) -> str:
        return json.dumps({"type": "array", "items": {"type": "string"}, "minItems": k, "maxItems": k})

    def prepare(self, engine: Engine, ask: Ask) -> None:
        engine.warm(ask.prompt())
        engine.generate("-", {"json_schema": self._schema(ask.k), "max_new_tokens": 1})

    def choose(self, engine: Engine, ask: Ask) -> Choice:
        sampling = {"json_schema": self._schema(ask.k), "max_new_tokens": _most_tokens(engine, ask)}
        return _choice(engine.generate(ask.prompt(), sampling), ask)


@sgl.function  # type: ignore[untyped-decorator]
def _choose(s: Any, prompt: str, names: list[str], k: int) -> None:
    s += prompt + "["
    left = list(names)
    for slot in range(k):
        s += '"'
        s += sgl.gen(f"pick{slot}", choices=left)
        s += '"]' if slot == k - 1 else '", '
        left.remove(s[f"pick{slot}"])


class ChoicesArm(Arm):
    """``gen(choices=)`` slot by slot, what was chosen taken out."""

    name = "choices"

    def prepare(self, engine: Engine, ask: Ask) -> None:
        engine.warm(ask.prompt())

    def choose(self, engine: Engine, ask: Ask) -> Choice:
        backend = sgl.RuntimeEndpoint(engine.url)
        state = _choose.run(prompt=ask.prompt(), names=ask.names, k=ask.k, backend=backend)
        picked = [state[f"pick{slot}"] for slot in range(ask.k)]
        sizes = {name: engine.size(name) for name in ask.names}
        # Each slot is one request for the common prefix and a batch of one request a label.
        positions = sum(sum(size for name, size in sizes.items() if name not in picked[:slot]) for slot in range(ask.k))
        picks = [ask.names.index(name) for name in picked]
        return Choice(picks, json.dumps(picked, ensure_ascii=False), passes=2 * ask.k, positions=positions)


class LettersArm(Arm):
    """Options lettered in the prompt; the k letters with the highest logits at one position."""

    name = "letters"

    @staticmethod
    def _prompt(ask: Ask) -> str:
        lines = [
            f"{letter}. {option.name}: {' '.join(option.text.split()[: ask.words])}"
            for letter, option in zip(LETTERS, ask.menu.options, strict=False)
        ]
        body = "\n".join(lines)
        return f"{ask.heading}:\n{body}\nQuestion: {ask.menu.question}\nThe letter of the best of the {ask.noun}:"

    def prepare(self, engine: Engine, ask: Ask) -> None:
        if len(ask.names) <= len(LETTERS):
            engine.warm(self._prompt(ask))

    def choose(self, engine: Engine, ask: Ask) -> Choice:
        if len(ask.names) > len(LETTERS):
            raise SkipArmError(f"{len(ask.names)} options, {len(LETTERS)} letters")
        encoded = [engine.tokenizer.encode(" " + letter, add_special_tokens=False) for letter in LETTERS]
        if any(len(ids) != 1 for ids in encoded):
            raise SkipArmError("this tokenizer has letters of several tokens")
        ids = [token for (token,) in encoded[: len(ask.names)]]
        out = engine.generate(self._prompt(ask), {"max_new_tokens": 1}, return_logprob=True, token_ids_logprob=ids)
        (values,) = out["meta_info"]["output_token_ids_logprobs"]
        logprobs = {token: logprob for logprob, token, *_ in values}
        order = sorted(range(len(ids)), key=lambda index: (-logprobs[ids[index]], index))[: ask.k]
        return Choice(order, " ".join(LETTERS[index] for index in order), passes=1, positions=1)
