import builtins
import copy
import pickle

import pulsar
import pytest

from pulsar_fast import enums, exceptions
from pulsar_fast.exceptions import PulsarException, from_result, from_server_error
from pulsar_fast.result import Result
from pulsar_fast.wire.messages import ServerError

ERRORS = [result for result in Result if result is not Result.Ok]
CLASSES = [getattr(exceptions, result.name) for result in ERRORS]


def test_results_are_those_of_the_official_client():
    assert {r.name: r.value for r in Result} == {n: int(v) for n, v in pulsar.Result.__members__.items()}


@pytest.mark.parametrize(
    "name", ["CompressionType", "PartitionsRoutingMode", "BatchingType", "ProducerAccessMode"]
)
def test_enums_are_those_of_the_official_client(name):
    official = getattr(pulsar, name, None) or getattr(pulsar._pulsar, name)
    ours = getattr(enums, name)
    assert {e.name: e.value for e in ours} == {n: int(v) for n, v in official.__members__.items()}


@pytest.mark.parametrize("result", ERRORS, ids=lambda result: result.name)
def test_every_result_has_its_exception(result):
    error = from_result(result, "why")
    assert type(error) is getattr(exceptions, result.name)
    assert type(error).__name__ == result.name
    assert hasattr(pulsar, result.name)
    assert isinstance(error, PulsarException)
    assert error.result is result
    assert error.message == "why"


def test_ok_and_unknown_results_are_not_errors():
    with pytest.raises(ValueError, match="Ok"):
        from_result(Result.Ok)
    with pytest.raises(ValueError, match="99"):
        from_result(99)


def test_everything_is_exported():
    functions = {"PulsarException", "from_result", "from_server_error"}
    assert set(exceptions.__all__) == functions | {result.name for result in ERRORS}


def test_text_is_the_official_one_with_the_reason():
    assert str(exceptions.Timeout()) == "Pulsar error: TimeOut"
    assert str(exceptions.Timeout("no receipt for 30 s")) == "Pulsar error: TimeOut: no receipt for 30 s"
    assert str(exceptions.IncompatibleSchema()) == "Pulsar error: IncompatibleSchema"
    assert str(exceptions.ConsumerAssignError()) == "Pulsar error: ResultConsumerAssignError"
    assert str(exceptions.ProducerFenced("x")) == "Pulsar error: ResultProducerFenced: x"
    assert str(exceptions.Interrupted()) == "Pulsar error: ResultInterrupted"


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        ("Timeout", TimeoutError),
        ("ConnectError", ConnectionError),
        ("NotConnected", ConnectionError),
        ("ReadError", ConnectionError),
        ("InvalidTopicName", ValueError),
    ],
)
def test_built_in_handlers_catch_their_kind(ours, builtin):
    with pytest.raises(builtin) as caught:
        raise getattr(exceptions, ours)("gone")
    assert isinstance(caught.value, PulsarException)
    assert str(caught.value).startswith("Pulsar error: ")


def test_look_up_errors_are_not_key_errors():
    assert not issubclass(exceptions.LookupError, builtins.LookupError)


@pytest.mark.parametrize("cls", [PulsarException, *CLASSES], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("arguments", [(), ("why",)], ids=["bare", "message"])
def test_errors_survive_copy_and_pickle(cls, arguments):
    error = cls(*arguments)
    error.extra = "kept"
    for copied in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(copied) is cls
        assert (str(copied), copied.message, copied.result) == (str(error), error.message, error.result)
        assert copied.args == error.args
        assert copied.extra == "kept"


# Where the broker's name for an error is not the client's.
RENAMED = {
    "MetadataError": "BrokerMetadataError",
    "PersistenceError": "BrokerPersistenceError",
    "ServiceNotReady": "ServiceUnitNotReady",
    "TooManyRequests": "TooManyLookupRequestException",
    "TopicTerminatedError": "TopicTerminated",
    "TransactionCoordinatorNotFound": "TransactionCoordinatorNotFoundError",
    "InvalidTxnStatus": "InvalidTxnStatusError",
}


@pytest.mark.parametrize(("name", "code"), ServerError.items())
def test_broker_errors_have_their_exceptions(name, code):
    error = from_server_error(code, "the broker's words")
    assert type(error).__name__ == RENAMED.get(name, name)
    assert str(error).endswith(": the broker's words")


@pytest.mark.parametrize("code", [-1, max(ServerError.values()) + 1, 2**31 - 1])
def test_newer_broker_errors_keep_number_and_text(code):
    error = from_server_error(code, "something new")
    assert type(error) is exceptions.UnknownError
    assert str(error) == f"Pulsar error: UnknownError: broker error {code}: something new"


def test_which_errors_end_a_producer_and_which_a_retry_can_mend():
    terminal = {cls.__name__ for cls in CLASSES if cls.terminal}
    assert terminal == {
        "TopicTerminated",
        "ProducerFenced",
        "TopicNotFound",
        "IncompatibleSchema",
        "InvalidTopicName",
    }
    retriable = {cls.__name__ for cls in CLASSES if cls.retriable}
    assert not terminal & retriable
    assert {"ServiceUnitNotReady", "ConnectError", "Timeout", "BrokerMetadataError", "ReadError"} <= retriable
    assert {"ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException"} <= retriable
    assert not {"ProducerBusy", "AuthorizationError", "AuthenticationError", "NotAllowedError"} & retriable
