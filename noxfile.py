"""The fast tests with every supported Python: `nox`. A Python that is not installed is reported and skipped."""

import nox

nox.options.error_on_missing_interpreters = False


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    """Install the package with what its tests need, and run them; arguments go to pytest: `nox -- -k codec`."""
    session.install("-c", "constraints.txt", "-e", ".[dev]")
    session.run("pytest", "-m", "not slow and not soak", "-n", "auto", "--dist", "worksteal", *session.posargs)
