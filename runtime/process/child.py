"""The process that runs engines: python -m llmc.runtime.process.child SOCKET DUMP PARENT.

SOCKET and DUMP are open file descriptors: a stream socket to the parent, and a file for the stacks of a process that
is stuck; PARENT is the parent's id. The child lives as long as the parent and does what it says; signals that a
terminal or a service manager sends to all processes are the parent's to answer.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from llmc.runtime.artifact.strict_json import to_plain
from llmc.runtime.cpu.threads import SharedThreads
from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.loop.core import EngineCore
from llmc.runtime.process.child_loop import ChildLoop, ParentGone
from llmc.runtime.process.frames import BrokenFrame, Frames, Message, frame
from llmc.runtime.process.loaded import facts_of
from llmc.runtime.process.serving import Serving
from llmc.runtime.process.wire import Start, plain_failure, read_as
from llmc.runtime.step.scheduling import ENDLESS, SchedulingOptions

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    descriptor, dump, parent = map(int, arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable(os.fdopen(dump, "w"))  # all stacks, when the parent sends SIGABRT
    die_with(parent)
    with socket.socket(fileno=descriptor) as link:
        try:
            return serve(link)
        except (ParentGone, BrokenPipeError, ConnectionResetError):
            return 0
        except BrokenFrame as error:
            print(f"llmc engine process: {error}", file=sys.stderr)
            return 1


def die_with(parent: int) -> None:
    """Be killed when the parent dies, however it dies and whatever this process is doing then."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def serve(link: socket.socket) -> int:
    frames = Frames()
    messages: list[Message] = []
    while not messages:
        piece = link.recv(1 << 16)
        if not piece:
            raise ParentGone
        messages = frames.feed(piece)
    with contextlib.ExitStack() as stack:
        try:
            start = read_as(Start, messages[0][1])
            threads = stack.enter_context(SharedThreads())  # closed after the engines
            servings = {name: load(folder, start, threads, stack) for name, folder in start.folders.items()}
            threads.keep_caller()
        except RuntimeFailure as error:
            link.sendall(frame("refused", plain_failure(error)))
            return 2
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            link.sendall(frame("refused", ["EngineError", f"{type(error).__name__}: {error}"]))
            return 2
        facts = [to_plain(facts_of(name, one.core, seconds)) for name, (one, seconds) in servings.items()]
        link.sendall(frame("ready", facts))
        return ChildLoop(link, frames, [serving for serving, _ in servings.values()]).run()


def load(folder: str, start: Start, threads: SharedThreads, stack: contextlib.ExitStack) -> tuple[Serving, float]:
    """An engine after its first good steps, and what one takes. Raises EngineError, InvalidParameter, StepFailed."""
    # the parent counts who waits, and refuses
    scheduling = replace(start.options.scheduling or SchedulingOptions(), max_queued=ENDLESS, max_queued_tokens=ENDLESS)
    options = replace(start.options, scheduling=scheduling)
    core = EngineCore.load(Path(folder), options, device=start.device, threads=threads)
    stack.callback(core.close)
    return Serving(core), core.warm_up()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
