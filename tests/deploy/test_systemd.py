"""The unit: what systemd says of it, and that llmc takes its command."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from llmc.serve.run import EXIT_DEAD
from tests.deploy.commands import served

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "llmc@.service"
MAX_EXPOSURE = 1.5  # of 10; systemd calls this OK, and 9.6 is a unit that says nothing


def settings(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), flags=re.M)


def setting(name: str) -> str:
    (value,) = settings(name)
    return value


def test_llmc_takes_its_command() -> None:
    program, *arguments = setting("ExecStart").replace("%i", "m").split()
    assert arguments[-1] == "$LLMC_OPTIONS"  # unquoted: split into words by systemd
    options = served([*arguments[:-1], "--port", "8001"])
    assert Path(program).name == "llmc" and list(options["engines"]) == ["m=/srv/llmc/m.engine"]
    assert (options["restart"], options["log_json"], options["port"]) == (True, True, 8001)


def test_it_drains_then_hurries_then_kills() -> None:
    """By SIGTERM and SIGTERM again, which are what the server listens to, each with its time."""
    drain = re.match(r"-/usr/bin/timeout (\d+) /bin/sh -c 'kill -TERM \$MAINPID ", setting("ExecStop"))
    assert drain and 60 <= int(drain[1]) < int(setting("TimeoutStopSec"))
    assert signal.Signals[setting("KillSignal")] is signal.SIGTERM
    assert setting("KillMode") == "mixed"  # the engines' process is the server's to end


def test_it_goes_on_after_a_failure_but_not_after_a_bad_start() -> None:
    assert setting("Restart") == "on-failure"
    assert setting("RestartPreventExitStatus") == "2" != str(EXIT_DEAD)


def test_it_listens_to_this_machine_alone() -> None:
    assert (settings("IPAddressDeny"), settings("IPAddressAllow")) == (["any"], ["localhost"])
    assert "--host" not in setting("ExecStart")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there (Debian: systemd)")
@pytest.mark.parametrize("check", ["verify", "security"])
def test_systemd_takes_it(check: str, tmp_path: Path) -> None:
    """With a program that is there in the place of llmc."""
    unit = tmp_path / "llmc@m.service"
    unit.write_text(UNIT.read_text().replace(setting("ExecStart").split()[0], "/bin/true"))
    options = (
        ["security", "--offline=true", f"--threshold={MAX_EXPOSURE * 10:.0f}"] if check == "security" else ["verify"]
    )
    done = subprocess.run(["systemd-analyze", *options, unit], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert check == "security" or done.stderr == ""  # a setting that it does not know is a warning
