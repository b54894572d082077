"""Commands that are run to their end, and fail with a sentence that says what they said."""
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from lib.outcome import Failure

# So much of what a command wrote is told.
MOST_SAID = 500


def named(words: list[str], most: int = 8) -> str:
    """A command as a failure names it."""
    return " ".join(words[:most]) + (" …" if len(words) > most else "")


def finish(*words: object, code: int | None = 0, patience: float = 60, stdin: str | None = None, directory: Path | None = None,
           environment: Mapping[str, str] | None = None, called: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. It is a failure if that is not `code` (None: any will do), or takes longer than so many seconds.

    `stdin` is what it reads, `environment` is added to this process's own, and a failure names the command as it is `called`.
    """
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=patience, input=stdin, cwd=directory,
            stdin=None if stdin is not None else subprocess.DEVNULL, env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired as late:
        said = " | ".join(text_of(text) for text in (late.stdout, late.stderr) if text)
        raise Failure(f"{called or named(command)} took longer than {patience} s: {said[-MOST_SAID:]}") from None
    if code is not None and done.returncode != code:
        said = (done.stderr or done.stdout).strip()
        raise Failure(f"{called or named(command, len(command))} ended with {done.returncode}, not {code}: {said[-MOST_SAID:]}")
    return done


def text_of(said: bytes | str) -> str:
    """What was written, as text: a command that is late leaves bytes."""
    return said if isinstance(said, str) else said.decode(errors="replace")


def run(*words: object, patience: float = 60) -> str:
    """Runs a command, which must end well; result: what it wrote to standard output."""
    return finish(*words, patience=patience).stdout
