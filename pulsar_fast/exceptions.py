"""The errors of the client: one hierarchy for the synchronous and the asyncio API.

Each class is named after its `Result`, as in the official client.
"""

from typing import ClassVar

from .result import Result

__all__ = [
    "AlreadyClosed",
    "AuthenticationError",
    "AuthorizationError",
    "BrokerMetadataError",
    "BrokerPersistenceError",
    "ChecksumError",
    "ConnectError",
    "ConsumerAssignError",
    "ConsumerBusy",
    "ConsumerNotFound",
    "ConsumerNotInitialized",
    "CryptoError",
    "CumulativeAcknowledgementNotAllowedError",
    "ErrorGettingAuthenticationData",
    "IncompatibleSchema",
    "Interrupted",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidTopicName",
    "InvalidTxnStatusError",
    "InvalidUrl",
    "LookupError",
    "MemoryBufferIsFull",
    "MessageTooBig",
    "NotAllowedError",
    "NotConnected",
    "OperationNotSupported",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerFenced",
    "ProducerNotInitialized",
    "ProducerQueueIsFull",
    "PulsarException",
    "ReadError",
    "ServiceUnitNotReady",
    "SubscriptionNotFound",
    "Timeout",
    "TooManyLookupRequestException",
    "TopicNotFound",
    "TopicTerminated",
    "TransactionConflict",
    "TransactionCoordinatorNotFoundError",
    "TransactionNotFound",
    "UnknownError",
    "UnsupportedVersionError",
    "from_result",
    "from_server_error",
]


class PulsarException(Exception):
    """Base of all errors that Pulsar, or this client on its behalf, reports.

    `message` says what happened, in the broker's own words where it gave any; `str()` puts the
    name of the error before it.
    """

    result: ClassVar[Result] = Result.UnknownError
    """The code of this error."""

    retriable: ClassVar[bool] = False
    """Whether creating the producer can succeed when it is tried again unchanged."""

    terminal: ClassVar[bool] = False
    """Whether a producer that gets this error while it reconnects can never come back."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)  # the only argument: copies and pickles are made from it
        self.message = message

    def __str__(self) -> str:
        name = f"Pulsar error: {_official_text(self.result)}"
        return f"{name}: {self.message}" if self.message else name


def _official_text(result: Result) -> str:
    """How the official client spells a result in its messages."""
    if result is Result.Timeout:
        return "TimeOut"
    if result >= Result.ConsumerAssignError:
        return f"Result{result.name}"
    return result.name


class UnknownError(PulsarException):
    """An error without a code of its own, or with one this client does not know."""

    result = Result.UnknownError
    retriable = True


class InvalidConfiguration(PulsarException):
    """The options contradict each other."""

    result = Result.InvalidConfiguration


class Timeout(PulsarException, TimeoutError):
    """The operation, or a message, ran out of time; the message says what it waited for."""

    result = Result.Timeout
    retriable = True


class LookupError(PulsarException):
    """The broker that serves the topic could not be found."""

    result = Result.LookupError
    retriable = True


class ConnectError(PulsarException, ConnectionError):
    """No connection to the broker could be made."""

    result = Result.ConnectError
    retriable = True


class ReadError(PulsarException, ConnectionError):
    """The connection failed while reading from it."""

    result = Result.ReadError
    retriable = True


class AuthenticationError(PulsarException):
    """The broker does not accept the credentials, or there are none to give it."""

    result = Result.AuthenticationError


class AuthorizationError(PulsarException):
    """The credentials do not allow the operation."""

    result = Result.AuthorizationError


class ErrorGettingAuthenticationData(PulsarException):
    """The credentials could not be obtained."""

    result = Result.ErrorGettingAuthenticationData


class BrokerMetadataError(PulsarException):
    """The broker could not read or update its metadata."""

    result = Result.BrokerMetadataError
    retriable = True


class BrokerPersistenceError(PulsarException):
    """The broker could not store the message."""

    result = Result.BrokerPersistenceError
    retriable = True


class ChecksumError(PulsarException):
    """The message arrived damaged."""

    result = Result.ChecksumError


class ConsumerBusy(PulsarException):
    """The subscription already has a consumer."""

    result = Result.ConsumerBusy


class NotConnected(PulsarException, ConnectionError):
    """There is no connection to the broker."""

    result = Result.NotConnected
    retriable = True


class AlreadyClosed(PulsarException):
    """The client or producer is closed, or was closed before the operation ended."""

    result = Result.AlreadyClosed


class InvalidMessage(PulsarException):
    """The message cannot be sent as it is."""

    result = Result.InvalidMessage


class ConsumerNotInitialized(PulsarException):
    """The consumer is not ready."""

    result = Result.ConsumerNotInitialized


class ProducerNotInitialized(PulsarException):
    """The producer is not ready."""

    result = Result.ProducerNotInitialized


class ProducerBusy(PulsarException):
    """Another producer of this name, or with exclusive access, is on the topic."""

    result = Result.ProducerBusy


class TooManyLookupRequestException(PulsarException):
    """The broker has too many look-ups under way."""

    result = Result.TooManyLookupRequestException
    retriable = True


class InvalidTopicName(PulsarException, ValueError):
    """The topic name is malformed."""

    result = Result.InvalidTopicName
    terminal = True


class InvalidUrl(PulsarException):
    """The URL is malformed."""

    result = Result.InvalidUrl


class ServiceUnitNotReady(PulsarException):
    """The broker does not serve the topic right now."""

    result = Result.ServiceUnitNotReady
    retriable = True


class OperationNotSupported(PulsarException):
    """The operation is not supported."""

    result = Result.OperationNotSupported


class ProducerBlockedQuotaExceededError(PulsarException):
    """The backlog quota of the topic is used up; the producer waits."""

    result = Result.ProducerBlockedQuotaExceededError
    retriable = True


class ProducerBlockedQuotaExceededException(PulsarException):
    """The backlog quota of the topic is used up; pending messages fail."""

    result = Result.ProducerBlockedQuotaExceededException
    retriable = True


class ProducerQueueIsFull(PulsarException):
    """The producer has no room for another pending message."""

    result = Result.ProducerQueueIsFull


class MessageTooBig(PulsarException):
    """The message is larger than the broker accepts."""

    result = Result.MessageTooBig


class TopicNotFound(PulsarException):
    """The topic does not exist."""

    result = Result.TopicNotFound
    terminal = True


class SubscriptionNotFound(PulsarException):
    """The subscription does not exist."""

    result = Result.SubscriptionNotFound


class ConsumerNotFound(PulsarException):
    """The consumer does not exist."""

    result = Result.ConsumerNotFound


class UnsupportedVersionError(PulsarException):
    """The broker's protocol version lacks the operation."""

    result = Result.UnsupportedVersionError


class TopicTerminated(PulsarException):
    """The topic is terminated and takes no more messages."""

    result = Result.TopicTerminated
    terminal = True


class CryptoError(PulsarException):
    """Encryption failed."""

    result = Result.CryptoError


class IncompatibleSchema(PulsarException):
    """The topic does not accept the schema."""

    result = Result.IncompatibleSchema
    terminal = True


class ConsumerAssignError(PulsarException):
    """The broker could not assign the consumer."""

    result = Result.ConsumerAssignError


class CumulativeAcknowledgementNotAllowedError(PulsarException):
    """The subscription does not allow cumulative acknowledgement."""

    result = Result.CumulativeAcknowledgementNotAllowedError


class TransactionCoordinatorNotFoundError(PulsarException):
    """The transaction coordinator could not be found."""

    result = Result.TransactionCoordinatorNotFoundError


class InvalidTxnStatusError(PulsarException):
    """The transaction is not in a state that allows the operation."""

    result = Result.InvalidTxnStatusError


class NotAllowedError(PulsarException):
    """The broker does not allow the operation."""

    result = Result.NotAllowedError


class TransactionConflict(PulsarException):
    """Another transaction holds what this one needs."""

    result = Result.TransactionConflict


class TransactionNotFound(PulsarException):
    """The transaction does not exist."""

    result = Result.TransactionNotFound


class ProducerFenced(PulsarException):
    """Another producer has taken exclusive access to the topic."""

    result = Result.ProducerFenced
    terminal = True


class MemoryBufferIsFull(PulsarException):
    """The client's memory limit leaves no room for the message."""

    result = Result.MemoryBufferIsFull


class Interrupted(PulsarException):
    """The operation was interrupted."""

    result = Result.Interrupted


_CLASS_OF_RESULT: dict[Result, type[PulsarException]] = {
    subclass.result: subclass for subclass in PulsarException.__subclasses__()
}

# Indexed by the broker's error code.
_CLASS_OF_SERVER_ERROR: tuple[type[PulsarException], ...] = (
    UnknownError,
    BrokerMetadataError,
    BrokerPersistenceError,
    AuthenticationError,
    AuthorizationError,
    ConsumerBusy,
    ServiceUnitNotReady,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ChecksumError,
    UnsupportedVersionError,
    TopicNotFound,
    SubscriptionNotFound,
    ConsumerNotFound,
    TooManyLookupRequestException,
    TopicTerminated,
    ProducerBusy,
    InvalidTopicName,
    IncompatibleSchema,
    ConsumerAssignError,
    TransactionCoordinatorNotFoundError,
    InvalidTxnStatusError,
    NotAllowedError,
    TransactionConflict,
    TransactionNotFound,
    ProducerFenced,
)


def from_result(result: int, message: str = "") -> PulsarException:
    """The exception of a `Result` other than `Ok`; ValueError for any other number."""
    if result == Result.Ok:
        raise ValueError("Result.Ok is not an error")
    return _CLASS_OF_RESULT[Result(result)](message)


def from_server_error(code: int, message: str) -> PulsarException:
    """The exception of an error code sent by a broker.

    A code newer than this client becomes an `UnknownError` that tells the number.
    """
    if 0 <= code < len(_CLASS_OF_SERVER_ERROR):
        return _CLASS_OF_SERVER_ERROR[code](message)
    return UnknownError(f"broker error {code}: {message}")
