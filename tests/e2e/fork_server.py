"""Runs `llmc` command lines, each in a process of its own that is forked after the imports.

One request per line on stdin: {"args": [...], "env": {...}, "folder": ..., "stdout": path, "stderr": path}; the answers
on stdout are the process id, then, when it has ended, its exit code (negative: the signal that killed it).
"""

import json
import os
import sys
import traceback

os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # as the command line does, before this import

import transformers.models.llama.modeling_llama  # noqa: F401  (what a build of a Llama would import)

import llmc.compiler.build
import llmc.compiler.commands.inspection
import llmc.compiler.commands.verify_console
import llmc.runtime.terminal.run  # noqa: F401
from llmc.compiler.commands.cli import main


def serve() -> None:
    ended = None
    for line in sys.stdin:
        if ended is not None:
            os.waitpid(ended, 0)
        pid = os.fork()
        if pid == 0:
            run(**json.loads(line))
        print(pid, flush=True)
        # not reaped before the next request, so that a signal meant for it reaches no other process
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert info is not None
        print(info.si_status if info.si_code == os.CLD_EXITED else -info.si_status, flush=True)
        ended = pid


def run(args: list[str], env: dict[str, str], folder: str, stdout: str, stderr: str) -> None:
    """Become the command; does not return."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(env)
    os.chdir(folder)
    code: object = 1
    try:
        main(args, prog_name="llmc")
    except SystemExit as exit:
        code = exit.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    print("ready", flush=True)
    serve()
