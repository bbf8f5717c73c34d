"""One shape for all data sets: a tree of sections to descend, a question, and what should be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bfcl import load_bfcl
from menus import Menu, Option, unique_names, write_prompt
from metatool import CATALOGUES, load_catalogue, load_listed
from musique import load_musique
from papers import Section, load_papers

from bench.rag.nesting import false_nesting

__all__ = ["DATASETS", "Ask", "Task", "load_tasks"]


@dataclass(frozen=True)
class Ask:
    """One choice: ``k`` of the options, behind a prompt."""

    menu: Menu
    heading: str
    noun: str
    k: int
    words: int

    @property
    def names(self) -> list[str]:
        """The labels."""
        return self.menu.names

    def prompt(self, how: str = "as a JSON list:") -> str:
        """Return the prompt; ``how`` says how the answer is to be written."""
        return write_prompt(self.menu, self.heading, f"The {self.noun}, most useful first, {how}", self.words)


@dataclass(frozen=True)
class Task:
    """A question over a tree; a flat menu is a tree of leaves.

    ``evidence`` holds, for each annotator, the paragraphs that answer the question; ``gold`` the right labels where the
    data set marks labels and not text. ``cluster`` names what questions share (a paper), for the bootstrap.
    """

    dataset: str
    id: str
    cluster: str
    question: str
    root: Section
    k: int
    noun: str
    words: int
    evidence: tuple[tuple[str, ...], ...] = ()
    gold: frozenset[str] = frozenset()

    def ask(self, level: list[Section]) -> Ask:
        """Return the choice among the open sections."""
        names = unique_names(section.name for section in level)
        options = tuple(Option(name, section.text()) for name, section in zip(names, level, strict=True))
        heading = self.root.name or "Options"
        return Ask(
            Menu(self.id, self.question, options, self.gold), heading, self.noun, min(self.k, len(level)), self.words
        )


def _papers(nesting: str) -> Iterator[Task]:
    for paper in load_papers():
        root = Section(f"Paper: {paper.title}\nSections", [], paper.root.children)
        if nesting == "false":
            root = false_nesting(root, seed=paper.id)
        for index, question in enumerate(paper.questions):
            yield Task(
                dataset="qasper",
                id=f"{paper.id}/{index}",
                cluster=paper.id,
                question=question.text,
                root=root,
                k=3,
                noun="sections that answer the question",
                words=15,
                evidence=question.evidence,
            )


def _flat(
    dataset: str, menus: list[Menu], heading: str, noun: str, k: int, words: int, *, text: bool
) -> Iterator[Task]:
    for menu in menus:
        leaves = [Section(option.name, [option.text]) for option in menu.options]
        evidence = tuple(option.text for option in menu.options if option.name in menu.gold)
        yield Task(
            dataset=dataset,
            id=menu.id,
            cluster=menu.id,
            question=menu.question,
            root=Section(heading, [], leaves),
            k=k,
            noun=noun,
            words=words,
            evidence=(evidence,) if text else (),
            gold=frozenset() if text else menu.gold,
        )


def _musique(_: str) -> Iterator[Task]:
    return _flat("musique", load_musique(), "Paragraphs", "paragraphs needed to answer it", 3, 12, text=True)


def _tools(size: int) -> Callable[[str], Iterator[Task]]:
    def load(_: str) -> Iterator[Task]:
        # Queries of one pair of tools stand together; every tenth is what the sample of ten listed tools holds.
        menus = load_listed() if size == 10 else load_catalogue(CATALOGUES[size])[:250:10]
        words = 6 if size > 50 else 12
        return _flat(f"metatool-{size}", menus, "Tools", "tools to call", 2, words, text=False)

    return load


def _bfcl(_: str) -> Iterator[Task]:
    return _flat("bfcl", load_bfcl(), "Functions", "function to call", 1, 12, text=False)


DATASETS: dict[str, Callable[[str], Iterator[Task]]] = {
    "qasper": _papers,
    "musique": _musique,
    "metatool-10": _tools(10),
    "metatool-47": _tools(47),
    "metatool-199": _tools(199),
    "bfcl": _bfcl,
}


def load_tasks(names: list[str], questions: int, nesting: str) -> list[Task]:
    """Return up to ``questions`` tasks of each data set, the data sets taking turns.

    A run cut short then has some of each. Only trees can be corrupted: with false nesting the flat sets are left out.
    """
    pools: list[list[Any]] = []
    for name in names:
        if nesting == "false" and name != "qasper":
            continue
        tasks = list(DATASETS[name](nesting))
        if name == "qasper":
            tasks = _spread(tasks)
        pools.append(tasks[:questions])
    longest = max((len(pool) for pool in pools), default=0)
    return [pool[index] for index in range(longest) for pool in pools if index < len(pool)]


def _spread(tasks: list[Task]) -> list[Task]:
    """Return the first question of each paper, then the second, ...: intervals come from papers, not from questions."""
    seen: dict[str, int] = {}
    keys = []
    for task in tasks:
        seen[task.cluster] = seen.get(task.cluster, -1) + 1
        keys.append(seen[task.cluster])
    return [task for _, task in sorted(zip(keys, tasks, strict=True), key=lambda pair: pair[0])]
