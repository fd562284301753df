"""Everything the runtime refuses, as types. Each message is one line that a command can print as it is."""


class RuntimeFailure(Exception):
    """Base of every error that llmc.runtime raises on purpose."""


class EngineError(RuntimeFailure):
    """The engine folder cannot be used; nothing of it has been run."""


class NotAnEngine(EngineError):
    """The path is missing, is no folder, or has no readable manifest."""


class FormatTooNew(EngineError):
    """The manifest's format is one that this version of llmc does not read."""


class ManifestInvalid(EngineError):
    """The manifest has an unknown, missing or ill-typed key; the message names its path."""


class ChecksumMismatch(EngineError):
    """A file, or the manifest itself, is not what the build wrote."""


class MachineMismatch(EngineError):
    """This machine lacks the architecture or CPU features that the kernels were compiled for."""


class AbiMismatch(EngineError):
    """The compiled steps speak another version of the step ABI."""


class FileMismatch(EngineError):
    """A file is missing, extra, of another size, or outside the engine's folder."""


class NotEnoughMemory(EngineError):
    """The asked-for limits need more memory than there is."""


class DeviceRefused(EngineError):
    """The driver refused what the engine needs of the device; carries CUDA's own message."""


class DiskFull(EngineError):
    """A build has, or had, too little disk space; what it had written is removed."""


class OutputOccupied(EngineError):
    """A build would overwrite something that is no engine."""


class OutputUnwritable(EngineError):
    """A build could not make its folder where it is wanted."""


class RequestError(RuntimeFailure):
    """A request that cannot be served; other requests are not affected."""


class InvalidParameter(RequestError):
    """A sampling parameter, token id or limit is out of its range."""


class PromptTooLong(RequestError):
    """The prompt leaves no room for an answer within the envelope or the KV pool."""


class QueueFull(RequestError):
    """As many requests wait as may; `retry_after` is about when one will have left, in seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ChatTemplateError(RequestError):
    """The chat template is missing, or refused the messages; carries the template's own message."""


class StepFailed(RuntimeFailure):
    """The device could not run a step: a fault of the engine or of the runtime, not of a request."""


class EngineGone(RuntimeFailure):
    """The process that runs the engine has died, or is being stopped; nothing that was asked of it will come."""


class NonFiniteLogits(RequestError):
    """The model produced infinities or NaN for this request."""
