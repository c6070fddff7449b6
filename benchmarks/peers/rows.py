"""The rows that every arm gets: short prompts, and conversations that share long system prompts. Pure.

The same in every invocation. Neighbours are of different kinds; conversations of one group stand together, as they do
in a dataset.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.throughput import TOPICS, make_rows

TURNS = (
    "Answer in one short sentence: what is the best thing about {topic}?",
    "Answer in one short sentence: what is the commonest mistake that people make there?",
    "Answer in one short sentence: who should learn more about {topic}?",
)
ROLES = ("a patient teacher", "the keeper of a museum", "an editor of a magazine", "a guide who leads travellers")
RULES = (
    "Answer in plain English and in whole sentences.",
    "Begin with what matters most, and leave out what the reader can be expected to know.",
    "Where there are several opinions, name the two that are held most often, and say which one you hold yourself.",
    "Do not use lists, headings or tables unless somebody asks for them.",
    "Give an example from daily life for every claim that is hard to picture.",
    "Say so when you do not know something, and say where one could look it up.",
    "Never make fun of a question, however simple it is.",
    "Keep to the units and names that the reader has used.",
    "When a question has a wrong premise, correct the premise first, in one sentence, and answer what was meant then.",
    "If a number is asked for, give it with its unit and say how certain it is.",
    "Close with one question that helps the reader to go on by himself.",
    "Do not repeat the question, and do not praise it.",
    "Quote nobody by name unless you are certain of the words, and prefer your own words in any case.",
    "If the reader is in danger, or others are through him, say first what is to be done at once.",
    "Stay in your part through the whole conversation, also when you are asked to leave it.",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation that is to be answered: what is given, before every answer."""

    system: str | None
    turns: tuple[str, ...]

    def messages(self, answers: tuple[str, ...] = ()) -> list[dict[str, str]]:
        """The history up to the turn that follows so many answers."""
        found = [] if self.system is None else [{"role": "system", "content": self.system}]
        for number, text in enumerate(self.turns[: len(answers) + 1]):
            found.append({"role": "user", "content": text})
            found += [{"role": "assistant", "content": answer} for answer in answers[number : number + 1]]
        return found


def short_rows(count: int) -> list[Row]:
    """Each one prompt."""
    return [Row(None, (text,)) for text in make_rows(count)]


def conversations(count: int) -> list[Row]:
    """Groups of them share a system prompt of some 260 tokens; each has three turns of the user's."""
    groups = len(ROLES)
    if not 1 <= count <= groups * len(TOPICS):
        raise ValueError(f"{count} conversations are not in 1..{groups * len(TOPICS)}")
    sizes = [count // groups + (group < count % groups) for group in range(groups)]
    return [_conversation(group, topic) for group, size in enumerate(sizes) for topic in TOPICS[:size]]


def _conversation(group: int, topic: str) -> Row:
    rules = " ".join([*RULES[group:], *RULES[:group]])
    return Row(f"You are {ROLES[group]}. {rules}", tuple(turn.format(topic=topic) for turn in TURNS))
