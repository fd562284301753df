"""A child that has loaded its engines, with what is known of their text on this side."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from llmc.runtime.artifact.artifact import EngineFiles, read_manifest
from llmc.runtime.artifact.strict_json import to_plain
from llmc.runtime.errors import EngineGone
from llmc.runtime.process.facts import EngineFacts
from llmc.runtime.process.launch import Child, cause_of_death
from llmc.runtime.process.link import Link
from llmc.runtime.process.wire import Start
from llmc.runtime.text.model_text import ModelText

_END = 5.0  # seconds for a child to end that is not needed


@dataclass
class Loaded:
    """Of every engine, in order."""

    child: Child
    link: Link
    facts: list[EngineFacts]
    texts: list[ModelText]

    @property
    def agree(self) -> bool:
        """Whether both sides have read the same engines: a build may put another one there meanwhile."""
        return all(fact.digest == text.files.files_digest for fact, text in zip(self.facts, self.texts, strict=True))


async def load(start: Start) -> Loaded:
    """Raises what loading raises: EngineError subclasses, InvalidParameter; EngineGone if the child died of it."""
    while True:
        loaded = await _load(start)
        if loaded.agree:
            return loaded
        await _end(loaded.child, loaded.link)


async def _load(start: Start) -> Loaded:
    child = Child.launch()
    link = await Link.open(child.link)
    try:
        link.send("start", to_plain(start))
        texts = asyncio.create_task(asyncio.to_thread(_texts, start))
        try:
            facts = await link.ready()
        except BaseException:
            await asyncio.gather(texts, return_exceptions=True)
            raise
        return Loaded(child, link, facts, await texts)
    except ConnectionError as error:
        code = await _end(child, link)
        raise EngineGone(f"the engine's process died while it loaded: {cause_of_death(code)}") from error
    except BaseException:
        await _end(child, link)
        raise


async def _end(child: Child, link: Link) -> int:
    link.close()
    child.kill()
    code = await asyncio.to_thread(child.wait, _END)
    child.forget()
    return code


def _texts(start: Start) -> list[ModelText]:
    folders = [Path(folder) for folder in start.folders.values()]
    return [ModelText.load(EngineFiles(folder, read_manifest(folder))) for folder in folders]
