"""Starting and ending the child as a process of the operating system."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

_STACK_LINES = 60


@dataclass
class Child:
    """A running child, its socket, and the file that its stacks are dumped to if it is stuck."""

    process: subprocess.Popen[bytes]
    link: socket.socket
    dump: int

    @classmethod
    def launch(cls) -> "Child":
        """In a process group of its own, where no terminal's Ctrl-C gets; with this process's environment."""
        ours, its = socket.socketpair()
        dump = os.memfd_create("llmc-stacks")
        try:
            numbers = [its.fileno(), dump, os.getpid()]
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "llmc.runtime.process.child", *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what is printed there, by a library perhaps, is no answer of this program
                pass_fds=numbers[:2],
                process_group=0,
            )
        except BaseException:
            ours.close()
            os.close(dump)
            raise
        finally:
            its.close()
        ours.setblocking(False)
        return cls(process, ours, dump)

    def dump_stacks(self) -> None:
        """And die of it: faulthandler writes where every thread is."""
        self.process.send_signal(signal.SIGABRT)

    def kill(self) -> None:
        self.process.kill()

    def wait(self, seconds: float) -> int:
        """The exit code. Whoever has not ended by then is killed."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def stacks(self) -> str:
        """What it dumped; empty if it did not."""
        lines = os.pread(self.dump, 1 << 16, 0).decode(errors="replace").splitlines()
        return "\n".join(lines[:_STACK_LINES])

    def forget(self) -> None:
        """Close what is left of it on this side, once it has ended."""
        os.close(self.dump)


def cause_of_death(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"
