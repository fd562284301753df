"""A chat at a terminal: its history, and the commands that begin with a slash."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmc.runtime.errors import RequestError
from llmc.runtime.terminal.session import SETTINGS, Session
from llmc.runtime.terminal.typed_messages import MORE, ReadLine, Typed, read_message, read_text
from llmc.runtime.text.chat import Message

PROMPT = "> "


class Conversation:
    """Reads messages and answers them until the user leaves. `quiet`: without prompts."""

    def __init__(self, session: Session, quiet: bool = False) -> None:
        self._session = session
        self._prompts = ("", "") if quiet else (PROMPT, MORE)
        self._messages: list[Message] = []
        self._read: list[str] = []  # texts of files, for the next message
        self._left = False

    def run(self, read_line: ReadLine) -> None:
        """Until a command to leave, or the end of the lines (Ctrl-D)."""
        while not self._left:
            try:
                self._take(read_message(read_line, *self._prompts))
            except EOFError:
                self._session.notice("")
                return
            except KeyboardInterrupt:  # at the prompt: what was typed is dropped
                self._session.notice("")
            except (RequestError, OSError) as error:
                if isinstance(error, BrokenPipeError):
                    raise
                self._session.notice(f"error: {error}")

    def _take(self, typed: Typed) -> None:
        if typed.is_command:
            self._command(typed.text)
        elif typed.text.strip() or self._read:
            self._turn("\n\n".join([*self._read, typed.text]))

    def _turn(self, text: str) -> None:
        """A message that is refused leaves the chat as it was."""
        asked: Message = {"role": "user", "content": text}
        completion = self._session.answer([*self._messages, asked])
        self._read = []
        if not self._session.raw:  # there each text is one of its own
            self._messages += [asked, {"role": "assistant", "content": completion.text}]

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        for command in COMMANDS:
            if name in command.names:
                command.action(self, argument.strip())
                return
        raise RequestError(
            f"{name} is no command, and was not sent; /help lists them (a space before it sends a line with a slash)"
        )

    def help(self, _: str) -> None:
        for command in COMMANDS:
            self._session.notice(f"  {command.usage:28} {command.meaning}")
        self._session.notice(
            '\n  """ begins and ends a message of several lines, and \\ at its end continues a line.\n'
            "  Ctrl-C stops an answer, Ctrl-D leaves."
        )

    def clear(self, _: str) -> None:
        self._messages, self._read = [], []
        self._session.notice("The conversation is forgotten; the system message and the settings stay.")

    def set(self, argument: str) -> None:
        what, _, rest = argument.partition(" ")
        name, _, value = rest.strip().partition(" ")
        if what == "system":
            self._session.set_system(rest.strip())
        elif what == "parameter" and value.strip():
            self._session.set(name, value.strip())
        else:
            raise RequestError(
                f"/set {argument}: expected /set system TEXT or /set parameter NAME VALUE, "
                f"NAME one of {', '.join(SETTINGS)}"
            )

    def show(self, _: str) -> None:
        self._session.notice(f"  system: {self._session.system or 'none'}")
        for name in SETTINGS:
            self._session.notice(f"  {name}: {getattr(self._session.params, name)}")

    def read(self, argument: str) -> None:
        text = read_text(Path(argument).expanduser())
        self._read.append(text)
        self._session.notice(f"{argument}: {len(text):,} characters, sent with the next message")

    def leave(self, _: str) -> None:
        self._left = True


@dataclass(frozen=True)
class Command:
    """A line that begins with one of these names, and what it does with the rest of it."""

    names: tuple[str, ...]
    usage: str
    meaning: str
    action: Callable[[Conversation, str], None]


COMMANDS = (
    Command(("/help", "/?"), "/help", "These lines.", Conversation.help),
    Command(("/clear",), "/clear", "Forget the conversation so far.", Conversation.clear),
    Command(("/set",), "/set system TEXT", "The system message; without a text: none.", Conversation.set),
    Command((), "/set parameter NAME VALUE", f"NAME: {', '.join(SETTINGS)}.", Conversation.set),
    Command(("/show",), "/show", "The system message and the settings.", Conversation.show),
    Command(("/read",), "/read FILE", "Send a text file with the next message.", Conversation.read),
    Command(("/bye", "/exit", "/quit"), "/bye, /exit", "Leave.", Conversation.leave),
)
