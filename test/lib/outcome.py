"""How a case ends that does not simply pass."""
import subprocess
import traceback


class Failure(Exception):
    """Something did not go as it should."""


class Skip(Exception):
    """A case cannot run here."""


# Errors whose words say enough. Any other one is a fault of the test's, which its traceback shows.
EXPECTED = (Failure, OSError, subprocess.TimeoutExpired)


def check(holds: object, text: object) -> None:
    """Fails with a text unless something holds."""
    if not holds:
        raise Failure(text)


def words_of(error: BaseException) -> str:
    """What is told of an error."""
    return str(error) if isinstance(error, EXPECTED) else "".join(traceback.format_exception(error, limit=-3))
